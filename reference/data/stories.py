"""Short stories from a plot grammar: a hero, a friend, a place, a thing, a plot of steps, each step with many wordings."""

from world import ANIMALS, JOBS, Person, article, cap, person, pick

PLACES = ("a small village by the sea", "a quiet town near the mountains", "a farm at the edge of the forest", "a house on a green hill",
          "a cottage beside a river", "a narrow street in an old city", "a valley full of apple trees", "an island with a tall lighthouse",
          "a village where it often rained", "a house with a blue door", "a windmill on the plain", "a harbour town with crooked roofs",
          "a little wooden house in the woods", "a castle with many stairs", "a busy market town", "a tent at the edge of the desert",
          "a red barn beside a lake", "a flat above a bakery", "a boat on a slow river", "a snowy village in the north")
WOODS = ("the forest", "the old garden", "the hills", "the beach", "the market", "the river bank", "the meadow", "the library", "the station",
         "the mill", "the harbour", "the orchard", "the cave", "the bridge", "the lighthouse", "the school", "the attic", "the park")
THINGS = ("lantern", "key", "kite", "map", "drum", "flute", "boat", "clock", "ring", "coat", "umbrella", "bell", "box", "mirror", "basket",
          "ladder", "book", "letter", "scarf", "hat", "wagon", "compass", "whistle", "blanket", "teapot", "button", "shell", "feather", "coin",
          "violin", "bicycle", "rope", "pencil", "cup", "candle", "sledge", "telescope", "puppet", "ball", "paintbrush")
LOOKS = ("old", "small", "red", "blue", "shiny", "wooden", "silver", "golden", "broken", "heavy", "strange", "beautiful", "dusty", "green",
         "tiny", "yellow", "painted", "plain", "striped", "bright")
TRAITS = ("kind", "brave", "curious", "shy", "clever", "patient", "cheerful", "careful", "lazy", "proud", "gentle", "quiet", "honest", "stubborn",
          "lonely", "hopeful", "clumsy", "thoughtful", "merry", "restless")
PETS = ("dog", "cat", "rabbit", "goat", "parrot", "donkey", "goose", "pony", "mouse", "hen", "duck", "hedgehog", "crow", "tortoise", "squirrel")
BEASTS = [a["name"] for a in ANIMALS if a["class"] in ("mammal", "bird", "reptile", "amphibian") and " " not in a["name"]]
TREATS = ("bread", "soup", "apples", "honey cake", "cheese", "warm milk", "pancakes", "berries", "plum jam", "porridge", "roast potatoes",
          "tea and biscuits", "a bowl of stew", "ginger cake", "nuts and raisins")
SEASONS = ("spring", "summer", "autumn", "winter")
FEEL_GOOD = ("happy", "glad", "proud", "delighted", "cheerful", "full of joy", "pleased", "very happy")
FEEL_BAD = ("sad", "worried", "afraid", "upset", "disappointed", "lonely", "tired and sad", "very unhappy")
MORALS = {
    "help": ("A small kindness can come back as a great one.", "Whoever helps others is never really alone.", "Kind hands make many friends.",
             "It costs little to be kind, and it is worth a great deal."),
    "try": ("If you try once more, you may succeed.", "Patience wins in the end.", "Every master was once a beginner.",
            "Mistakes are good teachers.", "Small steps can lead a long way."),
    "brave": ("Being brave does not mean having no fear.", "A thing is often less frightening in the light.", "Courage grows when you use it.",
              "Fear becomes smaller when friends share it."),
    "honest": ("The truth is easier to carry than a lie.", "An honest word mends more than glue.", "It is better to tell the truth at once.",
               "Trust is worth more than gold."),
    "share": ("Shared bread tastes best.", "What you share is doubled.", "There is enough for everyone when people share.",
              "A full table needs more than one chair."),
    "calm": ("Think first, then act.", "Not every noise is a monster.", "It is wise to look twice.", "A quiet head finds the way."),
}

OPEN = ("Once upon a time, in {place}, there lived {who} named {h}.", "There was once {who} called {h}, who lived in {place}.",
        "In {place} lived {who} whose name was {h}.", "Long ago, {who} named {h} lived in {place}.", "{h} was {who} who lived in {place}.",
        "This is the story of {h}, {who} from {place}.", "Not far from here, in {place}, lived {h}, {who}.",
        "Many years ago there lived in {place} {who} by the name of {h}.")
TRAIT = ("{h} was very {trait}, and everyone knew it.", "Everyone said that {h} was {trait}.", "{He} was {trait} and liked to {hobby}.",
         "Every day {he} liked to {hobby}.", "{h} was {trait}, but {he} was also a little {trait2}.", "More than anything, {h} loved to {hobby}.",
         "People in the neighbourhood liked {h}, because {he} was so {trait}.", "{His} best friend was {friend_intro}.",
         "{h} had a good friend, {friend_intro}.", "{He} shared {his} days with {friend_intro}.")
HOBBIES = ("watch the clouds", "sing songs", "climb trees", "read old books", "collect stones", "tell jokes", "draw pictures", "walk in the rain",
           "count the stars", "bake bread", "listen to the birds", "mend broken things", "dance in the kitchen", "look for shells",
           "write letters", "ask questions", "sit by the fire", "run down the hill", "plant flowers", "play the {flute}")
DAY = ("One {season} morning,", "One day,", "One rainy afternoon,", "One cold evening,", "On a bright {season} day,", "Early one morning,",
       "One night, when the moon was full,", "On the first day of {season},", "One windy day,", "Late one afternoon,", "On {his} birthday,")
THEN = ("Then", "After a while,", "A little later,", "Soon", "Just then,", "In the end,", "At last", "Before long,", "That evening,")
END = ("From that day on, {h} and {f} were the best of friends.", "And that is how {h} learned to be a little more {trait3}.",
       "{h} went to bed that night with a smile.", "Ever since, {h} has told this story to anyone who wants to hear it.",
       "And they all had {treat} together.", "That night the stars seemed brighter than ever.", "{h} never forgot that day.",
       "Everyone was {good}, and {h} most of all.", "And if you go to {wood} today, you may still see {h} and {f} there.",
       "So the day ended well, and {h} slept soundly.", "From then on, the {thing} stood by {his} window.",
       "\"What a day!\" said {h}, and {f} agreed.")

# Each plot: (moral, step, step, ...); a step is a tuple of wordings.
PLOTS = {
    "lost": ("calm",
             ("{day} {h} could not find {his} {look} {thing}.", "{day} {h} saw that {his} {look} {thing} was gone.",
              "{day} {his} {look} {thing} was missing. {h} had looked after it for years."),
             ("{He} looked under the bed, behind the door and even in the soup pot, but it was not there.",
              "{He} searched the whole house, from the cellar to the roof.", "{h} looked everywhere and became more and more {bad}.",
              "First {he} was sure that somebody had taken it."),
             ("\"Perhaps {f} has taken it,\" thought {h}, but {he} was not sure.", "\"Have you seen my {thing}?\" {he} asked {f}.",
              "{f} saw that {h} was {bad} and asked what was wrong.", "{h} told {f} about it, almost crying."),
             ("\"Let us think,\" said {f}. \"Where did you have it last?\"", "\"When did you see it last?\" asked {f} calmly.",
              "{f} said, \"Do not run about. Sit down and think.\""),
             ("{h} thought for a long time. \"Yesterday I was at {wood},\" {he} said at last.",
              "{h} closed {his} eyes. \"I had it with me at {wood},\" {he} remembered.",
              "\"I think that I took it to {wood},\" said {h} slowly."),
             ("So they went to {wood} together, and there lay the {thing}, just where {h} had left it.",
              "They walked to {wood}, and soon {f} found the {thing} under some leaves.",
              "Together they went back to {wood}. The {thing} was hanging on a branch and shone in the sun.",
              "They hurried to {wood}, and there a {beast} was sitting on the {thing} and would not get up until {h} gave it a bit of bread.")),
    "stranger": ("help",
                 ("{day} {h} was on the way to {wood} when {he} met {stranger}.", "{day} {stranger} knocked at the door of {h}.",
                  "{day} {h} saw {stranger} sitting by the road."),
                 ("\"I am hungry and I have walked far,\" said the stranger. \"Can you help me?\"",
                  "\"Please, could you give me something to eat?\" asked the stranger.",
                  "The stranger was cold and had lost the way.", "\"My feet hurt, and my bag is heavy,\" said the stranger."),
                 ("{h} had only {treat} for {himself}, but {he} shared it at once.", "{h} did not think twice. {He} gave the stranger {treat}.",
                  "\"Come and sit with me,\" said {h}, and {he} brought {treat}.", "{h} carried the heavy bag and gave the stranger {treat}."),
                 ("The stranger thanked {him} and gave {him} {a_look_thing}.", "Before leaving, the stranger took {a_look_thing} out of a pocket and gave it to {h}.",
                  "\"Take this {thing},\" said the stranger. \"One day you will need it.\"",
                  "As a thank-you, the stranger left {a_look_thing} on the table."),
                 ("Some weeks later, a great storm came, and {f} was lost near {wood}.", "Not long after, {f} fell into a deep hole near {wood}.",
                  "In the following {season}, {f} could not find the way home from {wood}.", "One dark night {f} did not come home."),
                 ("Then {h} remembered the {thing}. With its help {he} found {f} before midnight.",
                  "{h} took the {thing} and ran. Thanks to it, {f} was soon safe and warm.",
                  "\"The {thing}!\" cried {h}. It was just what {he} needed, and soon {f} was saved.")),
    "build": ("try",
              ("{day} {h} decided to build {a_look_thing}.", "{day} {h} had an idea: {he} would make {a_look_thing} with {his} own hands.",
               "{h} had always wanted {a_look_thing}, but there was no money to buy one. So {he} decided to make it."),
              ("{He} took wood, string and nails and began to work.", "{He} asked {f} for some old boards and began at once.",
               "{He} drew a plan on a piece of paper and collected everything {he} needed."),
              ("The first one fell apart after a minute.", "The first try was crooked and broke at once.", "But it did not work at all, and {f} had to laugh.",
               "After one hour it broke into three pieces."),
              ("{h} was {bad}, but {he} did not give up.", "\"I will never do it,\" sighed {h}. \"Try again,\" said {f}.",
               "{h} wanted to throw everything away, but {f} said, \"Look, this part is already good.\"",
               "{He} slept badly that night and thought about what had gone wrong."),
              ("The second one was better, but still not good enough.", "On the next day {he} worked more slowly and measured everything twice.",
               "{He} asked {job} for advice and learned something new.", "So {he} began again, and this time {f} held the pieces together."),
              ("The third one was perfect.", "At last it was finished, and it was the finest {thing} in the whole neighbourhood.",
               "And this time it worked. {h} jumped for joy.", "When it was done, everybody came to look at it.")),
    "afraid": ("brave",
               ("There was only one thing that {h} was afraid of: {fear}.", "{h} was not afraid of much, but {he} was afraid of {fear}.",
                "Everyone knew that {h} was frightened of {fear}."),
               ("{day} {f} disappeared near {wood}, and {h} had to go and look.", "{day} {h} had to bring {a_look_thing} to {wood}, and the way was long.",
                "{day} somebody called for help from {wood}."),
               ("{His} knees shook, and {he} wanted to turn back.", "{h} stood still for a long time. {His} heart beat fast.",
                "\"I cannot do it,\" whispered {h}.", "{He} took a deep breath and counted to ten."),
               ("But then {he} thought of {f}. \"I will go one step,\" said {h}, \"and then one more.\"",
                "\"I am afraid, but I will go anyway,\" {he} said to {himself}.", "{He} sang a song, first quietly and then louder.",
                "{He} held the {thing} in {his} hand and went on, step by step."),
               ("It was not half as bad as {he} had thought.", "And what do you think? Nothing terrible happened at all.",
                "After a while {he} noticed that {he} was no longer shaking.", "Only a small {beast} sat there and looked at {him} with big eyes."),
               ("{h} found {f}, and they walked home hand in hand.", "\"You came!\" cried {f}. \"You are the bravest of all.\"",
                "When {he} came home, {f} was waiting with {treat}.", "\"I was afraid the whole time,\" said {h}. \"That is why it was brave,\" said {f}.")),
    "race": ("try",
             ("{day} there was to be a great race to {wood}.", "Every year in {season} there was a race to {wood}, and {h} wanted to win it.",
              "{day} {rival} laughed at {h}. \"You will never win the race to {wood},\" said {rival}."),
             ("The prize was {a_look_thing}.", "Whoever came first would get {a_look_thing}.", "The winner was to get a big basket of {treat2}."),
             ("{h} practised every morning before breakfast.", "{h} was not the fastest, but {he} practised every day.",
              "{f} helped {him} to train and counted the minutes."),
             ("When the race began, {rival} was far ahead.", "At the start {h} fell down, and all the others ran past.",
              "At first {h} was the very last."),
             ("But {rival} stopped to rest and fell asleep under a tree.", "On the way {h} saw that {rival} had hurt a foot, and {he} stopped to help.",
              "Halfway there, {rival} took the wrong path.", "{h} did not look left or right and went on step by step."),
             ("In the end {h} and {rival} crossed the line together, and everybody clapped.",
              "{h} came in first, and nobody could believe it.", "{h} did not win, but everyone cheered for {him}, and {he} was {good}.",
              "{h} won by the length of a nose. {rival} shook {his} hand and said, \"Well done.\"")),
    "storm": ("share",
              ("{day} a terrible storm came up. The wind howled and the rain beat against the windows.",
               "{day} the sky turned black, and soon it began to snow so hard that nobody could see the road.",
               "{day} the river rose higher and higher after three days of rain."),
              ("{h} was sitting by the fire when somebody knocked.", "{h} had just put {treat} on the table when there was a knock at the door.",
               "{h} looked out of the window and saw a small light in the dark."),
              ("It was {f}, wet from head to foot.", "Outside stood {f} and a shivering {beast}.", "\"May I come in?\" asked {f}. \"My roof has blown away.\""),
              ("\"Come in, come in,\" said {h}. \"There is not much room, but it is warm.\"", "{h} made room by the fire and brought a blanket.",
               "{h} gave {f} dry clothes and {treat}."),
              ("Soon there was another knock. This time it was {a_beast}.", "Then came {rival}, who had never been friendly to {h}.",
               "A little later a family of mice came in, too."),
              ("They shared everything, told stories and laughed all night long.", "There was little to eat, but together it was enough for all.",
               "They sat close together, and nobody was cold."),
              ("In the morning the sun shone, and together they repaired the roof.", "When the storm was over, they helped one another to clear up.",
               "The next morning the world looked new and clean.")),
    "broken": ("honest",
               ("{day} {h} was playing with a ball in the house, although it was not allowed.", "{day} {h} wanted to look at the {look} {thing} that belonged to {f}.",
                "{day} {h} borrowed the {look} {thing} of {f} without asking."),
               ("There was a crash, and the {thing} lay on the floor in pieces.", "It slipped out of {his} hands and broke.",
                "All at once there was a loud crack, and the {thing} was broken."),
               ("{h} was frightened. \"Nobody saw it,\" {he} thought, and {he} hid the pieces under the bed.",
                "\"I could say that the cat did it,\" thought {h}.", "{h} wanted to run away."),
               ("But all day long {he} had a heavy feeling in {his} stomach.", "At supper {he} could not eat a bite.", "{He} could not sleep that night."),
               ("The next morning {he} went to {f} and said, \"I broke your {thing}. I am sorry.\"", "In the end {he} went to {f} and told the whole truth.",
                "\"I have to tell you something,\" said {h} to {f}. \"I have broken the {thing}.\""),
               ("{f} was quiet for a moment. \"Thank you for telling me,\" said {f}.", "{f} was sad about the {thing}, but {good} that {h} had been honest.",
                "\"A {thing} can be mended,\" said {f}. \"It is more important that I can trust you.\""),
               ("Together they glued the pieces, and it looked almost like new.", "They mended the {thing} with glue and string.",
                "{h} worked for a week to buy a new one.")),
    "journey": ("help",
                ("{day} {h} packed a bag with {treat} and set out for {wood}.", "{h} had never seen the sea. {day} {he} said goodbye and set out.",
                 "{day} a letter came. It said: \"Come to {wood} as soon as you can.\" So {h} set out."),
                ("On the way {he} met {a_beast} that was stuck in a thorn bush. {h} set it free.", "After an hour {he} came to a fallen tree, and under it sat {a_beast}. {h} helped it out.",
                 "By the road {he} found {a_beast} with a hurt foot, and {he} bound up the foot with a handkerchief."),
                ("\"Thank you,\" said the animal. \"If you ever need me, call.\"", "The animal looked at {him} gratefully and ran away."),
                ("Further on {he} came to a wide river without a bridge.", "Then the path divided, and there was no sign.", "When night fell, {he} had lost the way."),
                ("\"What shall I do now?\" asked {h}.", "{h} sat down on a stone and did not know what to do.", "{h} called for help as loudly as {he} could."),
                ("Then the animal came back and showed {him} the way.", "All at once the animal stood beside {him}. \"Follow me,\" it said.",
                 "And look, the animal had brought all its friends, and together they helped {him}."),
                ("So {h} reached {wood}, and there {f} was waiting.", "At last {he} came to {wood}. It was more beautiful than {he} had dreamed.",
                 "When the sun rose, {h} saw {wood} before {him}.")),
    "noise": ("calm",
              ("{day} {h} woke up because there was a strange noise.", "{day} {h} heard something go \"{sound}\" in {wood2}.", "{day} {h} heard a \"{sound}\" under the floor."),
              ("\"It must be a monster,\" thought {h}.", "\"Who is there?\" called {h}, but nobody answered.", "{h} pulled the blanket over {his} head."),
              ("{He} woke {f}, and together they lit a candle.", "{He} fetched {f}, who was a little afraid, too.", "\"Did you hear that?\" whispered {h}. {f} nodded."),
              ("They tiptoed to the door and opened it very slowly.", "They crept down the stairs, step by step.", "With the {thing} in {his} hand, {h} went first."),
              ("The noise became louder and louder.", "There it was again: \"{sound}!\"", "Something moved in the dark."),
              ("It was only {a_beast} that was looking for {treat}.", "There sat {a_beast} with its head in a jar of honey.",
               "It was the wind, which was playing with the {look} {thing}.", "It was {rival}, who had come to bring {treat} as a surprise."),
              ("They both laughed until their sides hurt.", "\"Some monster!\" said {f}, and they laughed.", "{h} felt rather silly, but also {good}.")),
    "seed": ("try",
             ("{day} {f} gave {h} a tiny seed. \"Plant it and wait,\" said {f}.", "{day} {h} found a small brown seed near {wood}.", "{day} {h} bought a seed at the market for one penny."),
             ("{h} put it into the earth and watered it.", "{He} planted it behind the house, where the sun shone.", "{He} made a little hole, laid the seed in it and covered it with earth."),
             ("The next day nothing had happened.", "{He} looked every hour, but there was nothing to see.", "A week passed, and the earth was still bare."),
             ("\"It does not work,\" said {h}. \"Give it time,\" said {f}.", "{h} was {bad}. {He} wanted to dig the seed up again.", "{rival} laughed. \"You are watering mud,\" said {rival}."),
             ("But {h} went on watering it every day.", "{h} gave it water in the morning and told it stories in the evening.", "{h} waited through the rain and through the sun."),
             ("One morning a small green leaf stood there.", "And then, one day, a green tip came out of the earth.", "In {season} a little plant came up at last."),
             ("It grew and grew, and in the end it was a tree full of {fruit}.", "It became a sunflower that was taller than {h}.", "It grew into the most beautiful rose in the whole village.",
              "By the next year it bore {fruit}, and {h} shared them with everyone.")),
    "learn": ("try",
              ("{h} could not {skill}, and {he} wanted to learn it very much.", "{day} {h} saw how {rival} could {skill}. \"I want to learn that, too,\" {he} said.",
               "All the others could {skill}. Only {h} could not."),
              ("\"Will you teach me?\" {he} asked {f}.", "{He} went to {job} and asked for help.", "{f} offered to show {him} how."),
              ("The first day went badly.", "At first everything went wrong, and {rival} laughed.", "After one hour {h} was ready to give up."),
              ("\"Every day a little,\" said {f}.", "\"I could not do it at first, either,\" said {f}.", "\"You are thinking too much,\" said {f}. \"Try it slowly.\""),
              ("So {h} practised every evening until it was dark.", "{h} practised in the morning, at noon and in the evening.", "Day after day it went a little better."),
              ("And one day, all at once, it worked.", "After three weeks {h} could {skill} better than most.", "Then came the day when {he} could {skill} without thinking."),
              ("\"Look at me!\" cried {h}, and {f} clapped.", "Even {rival} was astonished.", "{h} was so {good} that {he} sang all the way home.")),
    "gift": ("share",
             ("It was almost the birthday of {f}, and {h} had no money for a present.", "{day} {h} wondered what {he} could give {f} for {his} birthday."),
             ("{He} thought about it all day long.", "\"A present must be big,\" said {rival}, \"or it is nothing.\"", "{He} went through the whole market, but everything was too dear."),
             ("In {wood} {he} found {a_look_thing} that somebody had thrown away.", "Then {he} found {a_look_thing} in a corner of the attic."),
             ("{He} cleaned it, painted it and mended it.", "{He} worked on it every night.", "{He} polished it until it shone like new."),
             ("On the birthday {rival} brought a huge box with a golden ribbon.", "The others brought big and expensive presents.", "When {h} saw the other presents, {he} wanted to hide the {thing}."),
             ("But when {f} saw the {thing}, {f} was very quiet and then smiled.", "\"You made this for me?\" asked {f}. \"It is the best present of all.\"",
              "{f} put all the other presents aside and held the {thing} for a long time.")),
    "wish": ("share",
             ("{day} {h} found {a_look_thing} in {wood2}.", "{day} {h} was digging in the garden and found {a_look_thing}.", "{day} a fish gave {h} {a_look_thing} because {he} had put it back into the water."),
             ("When {he} touched it, a voice said, \"You have one wish.\"", "It began to glow. \"Wish for something,\" it said, \"but only once.\"", "A tiny fairy came out of it and bowed. \"One wish,\" said the fairy."),
             ("{h} thought of gold, of a palace and of a mountain of cake.", "At first {he} wanted to be rich.", "\"I could be a king,\" thought {h}."),
             ("Then {he} saw {f}, who was ill and could not go out.", "But then {he} thought of {f}, who had nothing to eat.", "Then {he} looked at the dry fields and at the hungry animals."),
             ("\"I wish that {f} may be well and happy,\" said {h}.", "\"I wish for enough for everyone,\" said {he}.", "\"I wish that nobody here may be hungry,\" {he} said."),
             ("In the same moment it came true.", "There was a flash of light, and it was done.", "And so it happened."),
             ("{h} had no gold and no palace, but {he} was {good}.", "\"That was a wise wish,\" said the voice, and it was gone.", "The {thing} never glowed again, but {h} kept it all {his} life.")),
    "rescue": ("brave",
               ("{day} {h} and {f} went to {wood}.", "{day} {h} was walking near {wood} and heard somebody calling.", "{day} {f} climbed up too high near {wood}."),
               ("All at once the ice broke, and {f} fell into the cold water.", "Then {f} slipped and hung on a branch above the water.", "{f} was caught on a rock, and the water was rising."),
               ("\"Help!\" cried {f}.", "\"I cannot hold on much longer,\" called {f}.", "{f} was too frightened to move."),
               ("{h} looked round quickly. There was nobody who could help.", "{h} wanted to cry, but there was no time for that.", "{h} thought hard. Then {he} had an idea."),
               ("{He} took {his} {thing} and tied it to a long rope.", "{He} lay down flat and held out a long branch.", "{He} ran to fetch {job} and a strong rope."),
               ("\"Hold tight!\" {he} called, and {he} pulled with all {his} strength.", "Slowly, very slowly, {he} pulled {f} to the bank.", "After a long time {f} was back on firm ground."),
               ("\"You have saved my life,\" said {f}.", "They ran home and drank something hot by the fire.", "{f} was wet and cold, but safe.")),
}
THING_PLOTS = ("lost", "stranger", "build", "broken", "gift", "wish")      # the thing matters in these
FEARS = ("the dark", "thunder", "deep water", "high bridges", "big dogs", "spiders", "the old mill", "being alone", "the forest at night", "loud noises")
SKILLS = ("swim", "whistle", "ride a bicycle", "play the flute", "read", "bake bread", "skate", "juggle", "sing", "dance", "climb", "paint", "fly a kite")
SOUNDS = ("crack", "bump", "tap, tap", "whoosh", "clink", "scratch", "thump", "squeak", "rattle", "plop")
FRUITS = ("apples", "pears", "plums", "cherries", "golden peaches", "nuts", "oranges", "figs")
STRANGERS = ("an old woman with a stick", "an old man with a white beard", "a tired traveller", "a girl in a grey cloak", "a boy without shoes",
             "a wandering musician", "a sailor with a wooden leg", "a pedlar with a heavy sack")
DIALOGUE = ("\"{line}\" said {h}.", "\"{line}\" said {f}.", "{f} nodded. \"{line}\"", "\"{line}\" whispered {h}.", "\"{line}\" called {f}.")
LINES = ("How strange,", "What a lovely day,", "We must hurry,", "I have an idea,", "Look over there!", "I am so hungry,", "That was close,", "You are a true friend,",
         "I am not sure about this,", "Let us try it together,", "Nobody will believe this,", "I wonder what will happen next,", "Do not worry,")
WEATHER = ("The sun was shining.", "It was raining softly.", "A cold wind was blowing.", "The leaves were turning yellow.", "Snow lay on the roofs.",
           "The birds were singing.", "The sky was grey.", "There was mist over the fields.", "The air smelled of flowers.", "The moon was already up.")


class Hero(Person):
    def __init__(self, r, name=None, beast=None, sex=None):
        if beast is None and name is None and r.random() < 0.4:
            beast = r.choice(BEASTS)
        if name:
            p = Person(name, sex or r.choice("mf"))
        else:
            p = person(r)
        super().__init__(p.name, "m" if p.he == "he" else "f")
        self.beast = beast
        kind = r.random()
        trait = r.choice(TRAITS)
        if beast:
            self.who = article(r.choice((f"{trait} {beast}", f"little {beast}", f"young {beast}", f"{trait} little {beast}", f"old {beast}")))
        elif kind < 0.6:
            self.who = article(r.choice((f"{trait} ", "little ", "young ", f"{trait} little ", "")) + ("boy" if self.he == "he" else "girl"))
        elif kind < 0.85:
            self.who = article(r.choice((f"{trait} ", "old ", "young ")) + r.choice(JOBS)["name"])
        else:
            self.who = article(r.choice(("old ", "poor ", f"{trait} ")) + ("man" if self.he == "he" else "woman"))


def story(r, name=None, sex=None, beast=None, thing=None, place=None, plot=None, short=False):
    """Returns (text, facts): facts holds hero, kind, friend, thing, place, plot and moral of the story."""
    h = Hero(r, name, beast, sex)
    fr = person(r, shift=53)
    while fr.name == h.name:
        fr = person(r, shift=53)
    rv = person(r, shift=91)
    while rv.name in (h.name, fr.name):
        rv = person(r, shift=91)
    pet = r.choice(PETS)
    plot = plot or r.choice(THING_PLOTS if thing else list(PLOTS))
    thing = thing or r.choice(THINGS)
    look = r.choice(LOOKS)
    place = place or r.choice(PLACES)
    f_kind = pick(r, "a neighbour", f"a {pet}", "a school friend", "a cousin", article(r.choice(BEASTS)), article(r.choice(JOBS)["name"]))
    traits = r.sample(TRAITS, 3)
    v = dict(h=h.name, who=h.who, he=h.he, him=h.him, his=h.his, He=h.He, His=h.His, himself=h.him + "self" if h.he != "he" else "himself",
             f=fr.name, friend_intro=f"{f_kind} called {fr.name}", rival=rv.name, thing=thing, look=look, a_look_thing=article(f"{look} {thing}"),
             place=place, wood=r.choice(WOODS), wood2=r.choice(WOODS), trait=traits[0], trait2=traits[1], trait3=traits[2],
             hobby=r.choice(HOBBIES).replace("{flute}", r.choice(("flute", "drum", "violin"))), season=r.choice(SEASONS), treat=r.choice(TREATS),
             treat2=r.choice(("apples", "cakes", "cherries", "nuts", "sweets")), good=r.choice(FEEL_GOOD), bad=r.choice(FEEL_BAD), beast=r.choice(BEASTS),
             a_beast=article(r.choice(BEASTS)), stranger=r.choice(STRANGERS), fear=r.choice(FEARS), skill=r.choice(SKILLS), sound=r.choice(SOUNDS),
             fruit=r.choice(FRUITS), job="the " + r.choice(JOBS)["name"], line="")
    v["day"] = r.choice(DAY).format(**v)
    moral, *steps = PLOTS[plot]
    parts = [r.choice(OPEN)]
    extra = r.sample(TRAIT[:7], 1 if short else r.choice((1, 1, 2)))
    if len(extra) == 2 and all("{hobby}" in x or "was {trait}" in x for x in extra):
        extra.pop()
    parts += extra
    parts.append(r.choice(TRAIT[7:]))
    paras = [parts]
    cur = []
    for i, step in enumerate(steps):
        if short and 1 < i < len(steps) - 2 and r.random() < 0.3:
            continue
        s = r.choice(step)
        if i and not s.startswith(("{day}", "\"", "So ", "Then ", "But ", "And ", "At ", "On ")) and r.random() < 0.08 and s.startswith("{h}"):
            s = pick(r, "After a while ", "A little later ", "Soon ", "In the end ") + s
        cur.append(s)
        if not short and r.random() < 0.12:
            v["line"] = r.choice(LINES)
            said = r.choice(DIALOGUE).format(**v)
            if v["line"].endswith("!"):
                said = f"\"{v['line']}\" cried {h.name}."
            cur.append(said[:-2] + ".\"" if said.endswith(",\"") else said)
        if not short and i == 0 and r.random() < 0.4:
            cur.append(r.choice(WEATHER))
        if len(cur) >= 3 and r.random() < 0.6:
            paras.append(cur)
            cur = []
    cur.append(r.choice(END))
    if r.random() < 0.45:
        cur.append(r.choice(MORALS[moral]))
    paras.append(cur)
    sep = " " if short else r.choice(("\n\n", "\n\n", " "))
    text = sep.join(" ".join(p) for p in paras).format(**v)
    for noun in ("an island", "a farm", "a boat", "a narrow street", "a windmill"):
        text = text.replace("in " + noun, ("at " if noun == "a windmill" else "on ") + noun).replace("In " + noun, "On " + noun)
    return text, dict(hero=h.name, who=h.who, he=h, friend=fr.name, thing=thing, look=look, place=place, plot=plot, moral=r.choice(MORALS[moral]), beast=h.beast)


def title(r, facts):
    return pick(r, f"{facts['hero']} and the {cap(facts['thing'])}", f"The {cap(facts['look'])} {cap(facts['thing'])}", f"The Story of {facts['hero']}",
                f"{facts['hero']} and {facts['friend']}", f"A Day with {facts['hero']}")
