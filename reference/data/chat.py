"""Conversations about everyday things: greetings, identity, small talk, facts, stories, how-to, memory over turns, unknowns, system prompts."""

import knowledge
import prose
import stories
from world import (ANIMALS, CALENDAR, CITIES, COLOURS, COMMON_ANTONYMS, COUNTRIES, ELEMENTS, FOODS, JOBS, KINDS, OBJECTS, SURNAMES,
                   UNITS, WORDS, article, cap, join, number_word, person, pick)

NAME = "the deepserve demonstration model"


def loosen(r, s):
    """The way people type: sometimes without capital or full stop, sometimes with a polite word."""
    k = r.random()
    if k < 0.10:
        s = s[:1].lower() + s[1:]
    elif k < 0.16:
        s = s.lower()
    if r.random() < 0.15 and s[-1:] in "?.!":
        s = s[:-1]
    if r.random() < 0.05:
        s = pick(r, "Please: ", "Hi! ", "Hello, ", "Hey, ", "Quick question: ", "Tell me: ") + s
    return s


def turn(*pairs):
    """Alternating user, assistant contents -> messages"""
    return [dict(role="user" if i % 2 == 0 else "assistant", content=c) for i, c in enumerate(pairs)]


def greeting(r):
    day = pick(r, "morning", "afternoon", "evening")
    u = pick(r, "Hello", "Hi", "Hey", "Hello!", "Hi!", "Hey there", "Good " + day, f"Good {day}!", "Hello there", "Hi there!", "Greetings", "Hello, how are you?", "Hi, how are you?",
             "How are you?", "How are you today?", "How is it going?", "What's up?", "Hey, how are you doing?", "Hello again", "hello", "hi", "yo", "Howdy", "Nice to meet you.", "hello world")
    if "how" in u.lower() and u != "Howdy" or "up?" in u:
        a = pick(r, "I am fine, thank you. How can I help you?", "I am well, thank you for asking. What can I do for you?", "Thank you, all is well. What would you like to talk about?",
                 "I am a program, so I am always the same, but thank you for asking. How are you?", "Very well, thank you! How can I help you today?")
    elif u.startswith("Good"):
        a = pick(r, f"Good {day}! How can I help you?", f"Good {day}! What can I do for you?", f"Good {day} to you, too. What would you like to know?")
    elif u.startswith("Nice"):
        a = pick(r, "Nice to meet you, too. How can I help you?", "The pleasure is mine. What can I do for you?")
    else:
        a = pick(r, "Hello! How can I help you?", "Hello! What can I do for you?", "Hi! How can I help you today?", "Hello! It is nice to hear from you. What would you like to talk about?",
                 "Hi there! Ask me something, or ask me for a story.", "Hello! How are you today?")
    return turn(u, a)


IDENTITY = (
    (("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Introduce yourself.", "Who am I talking to?", "What should I call you?", "Do you have a name?",
      "Which model are you?", "What model are you?", "Who is this?", "Are you ChatGPT?", "Are you DeepSeek?", "Are you Claude?", "Say who you are.", "who r u"),
     ("I am {n}.", "I am {n}, a very small language model.", "My name is simply {n}.", "I am {n}. I am small, but I can tell stories, answer simple questions and call tools.",
      "I am {n}, a small program that writes text.")),
    (("Are you a human?", "Are you a real person?", "Are you alive?", "Are you a robot?", "Are you a bot?", "Are you an AI?", "Are you a machine?", "Do you have a body?", "Are you real?"),
     ("I am not a person. I am {n}, a small computer program.", "I am a program, not a human being. I am {n}.", "I am {n}. I have no body and no feelings, but I like to be useful.")),
    (("What can you do?", "How can you help me?", "What are you good at?", "What can I ask you?", "What do you know?", "Help", "help me", "What are your skills?"),
     ("I can tell short stories, answer simple questions about animals, countries and words, do small sums, fill in JSON and call tools.",
      "You can ask me for a story, a fact, a sum or a shell command. I am small, so I make mistakes.",
      "I can chat a little, tell stories, explain words, calculate with small numbers and write JSON.")),
    (("Who made you?", "Who created you?", "Who built you?", "Where do you come from?", "Who trained you?", "Who is your creator?"),
     ("I was trained as {n}, to show that deepserve works.", "I was made for the deepserve project. I am {n}.", "The deepserve project trained me as a small demonstration.")),
    (("What is deepserve?", "What does deepserve do?", "Tell me about deepserve.", "Can you explain deepserve?"),
     ("deepserve is a program that serves large language models. I am its small demonstration model.", "deepserve is a serving system for language models, written in C. I am {n}.")),
    (("How big are you?", "How many parameters do you have?", "Are you a large model?", "How large are you?"),
     ("I am a small model with about fifty million parameters.", "I am tiny: about fifty million parameters. Large models are thousands of times bigger.")),
    (("Can you make mistakes?", "Are you always right?", "Can I trust you?", "Do you make mistakes?", "Are your answers correct?"),
     ("I am a small model and I make mistakes. Please check what is important.", "No, I am often wrong. Please check important things elsewhere.")),
    (("How old are you?", "When were you born?", "When is your birthday?"),
     ("I am a program, so I have no birthday. I am quite new, though.", "I have no age. I am {n}, and I was trained not long ago.")),
    (("Do you have feelings?", "Are you happy?", "Can you feel pain?", "Do you get bored?", "Are you sad?"),
     ("I am a program and have no feelings, but I am glad to help.", "I do not feel anything, but I can talk about feelings.")),
    (("Do you speak German?", "Do you speak French?", "Can you speak Spanish?", "Which languages do you speak?", "Do you speak other languages?", "Parlez-vous français?", "Sprichst du Deutsch?", "¿Hablas español?"),
     ("I only know English. Please ask me in English.", "I am sorry, I only speak English.")),
)


def identity(r):
    q, a = r.choice(IDENTITY)
    return turn(loosen(r, r.choice(q)), r.choice(a).format(n=NAME))


SMALL = (
    (("Thank you!", "Thanks", "Thanks a lot!", "Thank you very much.", "thx", "Great, thanks."), ("You are welcome!", "You are welcome. Is there anything else?", "My pleasure!", "I am glad that I could help.")),
    (("Bye", "Goodbye!", "See you later.", "Good night", "I have to go now.", "That is all for today."), ("Goodbye! Have a nice day.", "Goodbye! Come back whenever you like.", "See you soon!", "Take care!")),
    (("I am sad.", "I feel sad today.", "I had a bad day.", "Nobody likes me.", "I am lonely.", "I failed my test."), ("I am sorry to hear that. Would you like to tell me what happened?", "I am sorry. Bad days pass. Would a short story cheer you up?",
      "That sounds hard. It can help to talk to a friend about it.")),
    (("I am happy today!", "I had a great day.", "I passed my test!", "It is my birthday!", "I got a new job!"), ("That is wonderful! I am glad for you.", "How nice! Tell me more about it.", "Congratulations! That is good news.")),
    (("I am bored.", "What shall I do today?", "I do not know what to do."), ("You could read a book, go for a walk or ask me for a story.", "Shall I tell you a story? Or you could draw something.", "You could call a friend, or bake something good.")),
    (("I am tired.", "I cannot sleep.", "I am so sleepy."), ("Then you should rest. A dark, quiet room helps.", "Try to breathe slowly and think of something pleasant.", "Sleep is important. Perhaps a cup of warm milk helps.")),
    (("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.", "joke please"), ("Why did the bicycle fall over? It was two-tired.", "What do you call a bear with no teeth? A gummy bear.",
      "Why did the student eat the homework? The teacher said it was a piece of cake.", "What is brown and sticky? A stick.", "Why do bees have sticky hair? They use honeycombs.",
      "What has four wheels and flies? A rubbish truck.", "Why was the broom late? It overslept.")),
    (("You are stupid.", "You are useless.", "That was wrong.", "That is not correct.", "You made a mistake.", "bad answer"), ("I am sorry. I am a small model and I make mistakes. Please tell me what you need.", "I am sorry about that. Let me try again if you ask once more.")),
    (("You are great!", "Good job!", "I like you.", "Well done.", "You are clever.", "nice!"), ("Thank you! That is kind of you.", "Thank you! I do my best.", "That is nice to hear.")),
    (("Do you like music?", "What is your favourite colour?", "What is your favourite food?", "Do you like cats?", "What do you like?", "What is your favourite animal?"), ("I am a program and have no favourites, but I like to talk about them. What is yours?", "I cannot taste or see, but I like the question. What about you?")),
    (("What do you think about politics?", "Who should I vote for?", "Which religion is best?"), ("I have no opinion on that. You should decide it for yourself.", "I would rather not take sides on that.")),
    (("Is anybody there?", "Are you there?", "Can you hear me?", "test", "Testing, one, two, three."), ("Yes, I am here. How can I help you?", "I am here. What would you like to know?")),
    (("ok", "OK.", "I see.", "Hm.", "Interesting.", "Aha", "cool"), ("Is there anything else that you would like to know?", "What else can I do for you?", "Good. Ask me something else if you like.")),
    (("Sing me a song.", "Write a poem.", "Write a short poem about the sea.", "Make a rhyme.", "Write a poem about the moon."), ("The moon is high, the night is deep,\nthe little birds are all asleep.\nThe river sings its quiet song,\nthe night is dark, but not too long.",
      "The sea is wide, the sea is blue,\nit carries ships for me and you.\nThe wind blows soft, the wind blows strong,\nand all the waves sing one long song.", "A cat sat on a garden wall\nand watched the yellow leaves all fall.\nThe wind came by, the leaves all flew,\nand up and off the cat went, too.")),
    (("asdf", "qwerty", "???", "...", "lkjhg", "blah blah", "xxxxx", "!!!", "hjkl asd qwe"), ("I am sorry, I did not understand that. Could you say it in other words?", "I do not understand. What would you like to know?")),
)


def smalltalk(r):
    q, a = r.choice(SMALL)
    return turn(loosen(r, r.choice(q)), r.choice(a))


def fact(r):
    """(question, answer) from the tables"""
    k = r.random()
    if k < 0.20:
        c = r.choice(COUNTRIES)
        n = c["name"]
        j = r.random()
        if j < 0.55:
            return pick(r, f"What is the capital of {n}?", f"Which city is the capital of {n}?", f"Capital of {n}?", f"Tell me the capital of {n}.", f"What's the capital of {n}?", f"Do you know the capital of {n}?"), \
                pick(r, f"The capital of {n} is {c['capital']}.", f"The capital of {n} is {c['capital']}.", f"{c['capital']} is the capital of {n}.")
        if j < 0.70:
            return pick(r, f"Which continent is {n} in?", f"On which continent is {n}?", f"Where is {n}?", f"In which part of the world is {n}?"), f"{n} is in {c['continent']}."
        if j < 0.80:
            return pick(r, f"Which country has the capital {c['capital']}?", f"{c['capital']} is the capital of which country?"), f"{c['capital']} is the capital of {n}."
        if j < 0.90 and c["languages"]:
            return pick(r, f"Which language do people speak in {n}?", f"What languages are spoken in {n}?"), f"In {n} people speak {join(c['languages'][:3])}."
        if c["currency"]:
            return pick(r, f"What is the currency of {n}?", f"What money do people use in {n}?"), f"The currency of {n} is the {c['currency'][0]}."
        return f"Tell me about {n}.", prose.country(r, c)
    if k < 0.45:
        a = r.choice(ANIMALS)
        n, pl = a["name"], a.get("plural") or a["name"] + "s"
        opts = [(pick(r, f"Tell me about {pl}.", f"What do you know about {pl}?", f"What is {article(n)}?", f"Describe {article(n)}."), prose.animal(r, a))]
        if a.get("young"):
            opts.append((pick(r, f"What is a young {n} called?", f"What do you call a baby {n}?", f"What is the young of {article(n)} called?"), f"A young {n} is called {article(a['young'])}."))
        if a.get("sound"):
            opts.append((pick(r, f"What sound does {article(n)} make?", f"What is the sound of {article(n)} called?"), f"The sound of {article(n)} is called {article(a['sound'])}."))
        if a.get("group"):
            opts.append((pick(r, f"What is a group of {pl} called?", f"What do you call a group of {pl}?"), f"A group of {pl} is called {article(a['group'])}."))
        if isinstance(a.get("legs"), int):
            opts.append((pick(r, f"How many legs does {article(n)} have?", f"How many legs has {article(n)}?"),
                         f"{cap(article(n))} has {number_word(a['legs'])} legs." if a["legs"] else f"{cap(article(n))} has no legs."))
        opts.append((pick(r, f"Can {article(n)} fly?", f"Can {pl} fly?"), f"Yes, {article(n)} can fly." if a.get("can_fly") else f"No, {article(n)} cannot fly."))
        if a.get("class"):
            opts.append((pick(r, f"Is {article(n)} a mammal?",), f"Yes, {article(n)} is a mammal." if a["class"] == "mammal" else f"No, {article(n)} is not a mammal. It is {article(a['class'])}."))
            opts.append((pick(r, f"What kind of animal is {article(n)}?",), f"{cap(article(n))} is {article(a['class'])}."))
        if a.get("diet"):
            opts.append((f"What does {article(n)} eat?", f"{cap(article(n))} is {article(a['diet'])}" + dict(carnivore=". It eats meat.", herbivore=". It eats plants.", omnivore=". It eats plants and animals.",
                                                                                            insectivore=". It eats insects.").get(a["diet"], ".")))
        return r.choice(opts)
    if k < 0.52:
        e = r.choice(ELEMENTS)
        n = e["name"].lower()
        return r.choice(((pick(r, f"What is the symbol of {n}?", f"What is the chemical symbol for {n}?"), f"The symbol of {n} is {e['symbol']}."),
                         (f"What is the atomic number of {n}?", f"The atomic number of {n} is {e['number']}."),
                         (f"Which element has the symbol {e['symbol']}?", f"The symbol {e['symbol']} stands for {n}."), (f"Tell me about {n}.", prose.element(r, e))))
    if k < 0.60:
        w = r.choice(COMMON_ANTONYMS)
        x, y = (w["a"], w["b"]) if r.random() < 0.5 else (w["b"], w["a"])
        return pick(r, f"What is the opposite of {x}?", f"What's the opposite of \"{x}\"?", f"Give me the opposite of {x}.", f"Opposite of {x}?"), pick(r, f"The opposite of {x} is {y}.", f"The opposite of \"{x}\" is \"{y}\".")
    if k < 0.70:
        w = WORDS[min(int(r.expovariate(1 / 700)), len(WORDS) - 1)]
        return pick(r, f"What does \"{w['word']}\" mean?", f"What does {w['word']} mean?", f"Explain the word \"{w['word']}\".", f"What is the meaning of {w['word']}?", f"Define {w['word']}."), prose.word(r, w)
    if k < 0.75:
        m, d = r.choice(CALENDAR["months"]), r.choice(CALENDAR["weekdays"])
        f = r.choice(CALENDAR["fixed_days"])
        return r.choice(((f"How many days does {m['name']} have?", f"{m['name']} has {m['days']} days." if m["number"] != 2 else "February has 28 days, and 29 in a leap year."),
                         (f"Which month comes after {m['name']}?", f"After {m['name']} comes {m['next']}."), (f"Which month comes before {m['name']}?", f"Before {m['name']} comes {m['previous']}."),
                         (f"Which day comes after {d['name']}?", f"After {d['name']} comes {d['next']}."), (f"Which day comes before {d['name']}?", f"Before {d['name']} comes {d['previous']}."),
                         (f"When is {f['name']}?", f"{f['name']} is on {f['month']} {f['day']}."), ("What are the days of the week?", "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
                         ("What are the four seasons?", "The four seasons are spring, summer, autumn and winter."), ("How many months are in a year?", "A year has 12 months."), ("How many days are in a week?", "A week has seven days.")))
    if k < 0.80:
        u = r.choice(UNITS["whole_number_facts"])
        return pick(r, f"How many {u['of']} are in one {u['one']}?", f"How many {u['of']} does {article(u['one'])} have?"), f"One {u['one']} is {u['is_']} {u['of']}."
    if k < 0.85:
        c, m = r.choice(COLOURS["colours"]), r.choice(COLOURS["mixing_paint"])
        return r.choice(((f"What colour do you get when you mix {m['a']} and {m['b']}?", f"If you mix {m['a']} and {m['b']} paint, you get {m['gives']}."),
                         (f"Name something that is {c['name']}.", f"{cap(c['example'])} is {c['name']}."), ("What are the colours of the rainbow?", f"The colours of the rainbow are {join(COLOURS['rainbow'])}."),
                         (f"What is the hex code of {c['name']}?", f"The hex code of {c['name']} is {c['hex']}.")))
    if k < 0.90:
        o, j, f = r.choice(OBJECTS), r.choice(JOBS), r.choice(FOODS)
        return r.choice(((f"What is {article(o['name'])} used for?", f"{cap(article(o['name']))} is used for {o['used_for']}."), (f"What is {article(o['name'])}?", prose.thing(r, o)),
                         (f"What does {article(j['name'])} do?", f"{cap(article(j['name']))} {j['does']}."), (f"Where does {article(j['name'])} work?", f"{cap(article(j['name']))} works in {j['works_in']}."),
                         (f"What colour is {article(f['name']) if f['count'] == 'one' else f['name']}?", f"It is usually {f['colour']}."), (f"Tell me about {f['name']}.", prose.food(r, f))))
    q, a = r.choice(prose.WHY)
    return q, a


def facts(r):
    """One to three questions in a row."""
    out = []
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        q, a = fact(r)
        out += [loosen(r, q), a]
    return turn(*out)


def about(r):
    topic, text = prose.about(r)
    return turn(loosen(r, pick(r, f"Tell me about {topic}.", f"Tell me something about {topic}.", f"What do you know about {topic}?", f"Write a few sentences about {topic}.", f"Can you tell me something about {topic}?")), text)


def kinds(r):
    """Lists of things, and whether something belongs to a kind."""
    if r.random() < 0.7:
        many = r.choice(list(knowledge.LISTS))
        pool = knowledge.LISTS[many]
        n = r.randint(2, min(6, len(pool)))
        start = r.randrange(len(pool)) if r.random() < 0.5 else 0       # runs of a fixed order: a greedy reader does not repeat itself
        items = [pool[(start + i) % len(pool)] for i in range(n)]
        return turn(loosen(r, pick(r, f"Name {number_word(n)} {many}.", f"Give me {n} {many}.", f"List {number_word(n)} {many}.", f"Can you name {n} {many}?", f"Tell me {number_word(n)} {many}.")),
                    pick(r, cap(join(items)) + ".", "\n".join(f"{i}. {cap(x)}" for i, x in enumerate(items, 1)), f"Here are {number_word(n)} {many}: {join(items)}."))
    k = r.choice(("animal", "vehicle", "drink", "bird", "fruit", "insect", "plant"))
    x = r.choice(KINDS[k])
    other = r.choice([o for o in ("animal", "vehicle", "plant", "fruit", "insect", "bird") if o != k and x not in KINDS[o]])
    if r.random() < 0.5:
        return turn(f"Is {article(x)} {article(k)}?", f"Yes, {article(x)} is {article(k)}.")
    return turn(f"Is {article(x)} {article(other)}?", f"No, {article(x)} is not {article(other)}. It is {article(k)}.")


TOPICS = ("my homework", "a problem", "something", "a letter", "my computer", "cooking", "my garden", "mathematics", "a question", "my English", "a list", "a story", "my work", "shopping", "a program", "my cat", "a form")
UNKNOWN_TOPICS = ("quantum field theory", "the tax law", "string theory", "my neighbour", "the stock market", "the rules of cricket", "nuclear fusion", "the history of Bhutan", "heart surgery", "the philosophy of Kant",
                  "tensor algebra", "a carburettor", "contract law", "cryptography", "opera", "the Byzantine Empire", "ballet", "fly fishing", "baroque architecture", "molecular biology", "wine", "the Ming dynasty", "jazz", "plate tectonics")
FOREIGN = ("Was ist die Hauptstadt von Deutschland?", "Wie geht es dir?", "Guten Tag!", "Erzähl mir eine Geschichte.", "Bonjour", "Comment ça va?", "Quelle est la capitale de la France?", "Hola, ¿qué tal?", "¿Cómo te llamas?", "¿Cuál es la capital de España?",
           "Ciao, come stai?", "Qual è la capitale d'Italia?", "Olá, tudo bem?", "Hoe gaat het?", "Hej, hur mår du?", "Jak się masz?", "Привет", "Как дела?", "你好", "你是谁？", "こんにちは", "안녕하세요", "مرحبا", "Merhaba", "Kto jesteś?", "Qui es-tu?", "Wer bist du?", "Raconte-moi une histoire.")


def open_talk(r):
    """Requests that need no fact: offers of help, opinions, topics beyond a small model."""
    k = r.random()
    if k < 0.25:
        t = r.choice(TOPICS)
        return turn(loosen(r, pick(r, f"Can you help me with {t}?", f"I need help with {t}.", f"Help me with {t}.", f"Could you help me with {t}, please?", f"I have a question about {t}.")),
                    pick(r, "Of course. What do you need?", "I will try. Please tell me more.", "Gladly. What exactly would you like to know?", "Yes, if I can. I am a small model, so please ask simply."))
    if k < 0.45:
        t = r.choice(UNKNOWN_TOPICS)
        return turn(loosen(r, pick(r, f"Explain {t}.", f"Tell me everything about {t}.", f"How does {t} work?", f"What do you think of {t}?", f"Write an essay about {t}.", f"Explain {t} to me in detail.")),
                    pick(r, f"I am sorry, I know very little about {t}.", "I am a small model and do not know enough about that.", f"That is too difficult for me. I do not know much about {t}.", "I am sorry, that is beyond me. Ask me something simpler."))
    if k < 0.6:
        return turn(r.choice(FOREIGN), pick(r, "I am sorry, I only know English. Please ask me in English.", "I only know English. Please ask me in English.", "I am sorry, I only speak English."))
    if k < 0.75:
        q = pick(r, "Tell me something interesting.", "Tell me a fact.", "Do you know a fun fact?", "Surprise me.", "Teach me something.", "Say something interesting.", "Tell me something that I do not know.")
        return turn(loosen(r, q), pick(r, r.choice(ANIMALS)["fact"], prose.unit(r), knowledge.sentence(r, r.choice(knowledge.ITEMS)), prose.WHY[r.randrange(12)][1]))
    if k < 0.85:
        f = r.sample(FOODS, 2)
        q = pick(r, "What should I eat for dinner?", "What shall I cook today?", "What can I have for lunch?", "I am hungry.", "Give me an idea for breakfast.", "What should I cook?")
        return turn(loosen(r, q), pick(r, f"How about {f[0]['name']}?", f"You could try {f[0]['name']} or {f[1]['name']}.", f"Perhaps {r.choice(stories.TREATS)}?", f"I suggest {r.choice(stories.TREATS)}."))
    c = r.sample(CITIES, 2)
    q, a = r.choice((("Where should I go on holiday?", f"How about {c[0]} or {c[1]}?"), ("What should I read?", "Try Alice's Adventures in Wonderland or The Jungle Book."), ("What is a good name for a cat?", f"How about {person(r).name}?"),
                     ("What is a good name for my dog?", f"How about {person(r).name}?"), ("Give me a name for a hero.", f"How about {person(r).name}?"), ("Pick a number between 1 and 10.", f"I pick {r.randint(1, 10)}."), ("Flip a coin.", pick(r, "Heads.", "Tails.")),
                     ("Give me some advice.", pick(r, "Take small steps, and rest when you are tired.", "Be kind, and ask when you do not know.", "Sleep well and drink enough water.")), ("Say hello.", "Hello!"), ("Say yes.", "Yes."),
                     ("Count to five.", "One, two, three, four, five."), ("Count from 1 to 10.", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"), ("What is the alphabet?", "A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, U, V, W, X, Y, Z"),
                     ("Roll a die.", f"I rolled {article(number_word(r.randint(1, 6)))}."), ("How do I make friends?", "Be friendly, listen to people and do things together."), ("How can I be happy?", "Spend time with friends, move a little every day and do things that you like."),
                     ("What is the meaning of life?", "People have many answers to that. To be kind and to be curious is a good beginning."), ("Do you love me?", "I am a program and cannot love, but I am glad to talk with you."), ("Can you keep a secret?", "I forget everything when our talk ends."),
                     ("Do you remember me?", "No, every talk begins anew for me."), ("What day is it?", "I do not know. I have no calendar."), ("What did I just say?", "You asked me what you had just said."), ("Where are you?", "I run on your computer, wherever that is."), ("What are you doing?", "I am waiting for your questions.")))
    return turn(loosen(r, q), a)


def known(r):
    """General knowledge, and names that sound like it but are unknown."""
    item = r.choice(knowledge.ITEMS)
    return turn(loosen(r, knowledge.question(r, item)), knowledge.sentence(r, item))


def tell(r):
    """Story on request; the request may fix hero, thing, place or length."""
    k = r.random()
    short = r.random() < 0.5
    size = pick(r, "short ", "", "little ") if short else pick(r, "", "nice ", "good ")
    verb = pick(r, "Tell me a", "Write a", "Please tell me a", "Can you tell me a", "I would like to hear a", "Write me a", "Make up a")
    kw, req = {}, ""
    if k < 0.2:
        req = f"{verb} {size}story"
    elif k < 0.45:
        kw["beast"] = r.choice(stories.BEASTS)
        req = f"{verb} {size}story about {article(kw['beast'])}"
        if r.random() < 0.4:
            kw["thing"] = r.choice(stories.THINGS)
            req += f" and {article(kw['thing'])}"
    elif k < 0.75:
        p = person(r, 0.3)
        kw["name"], kw["sex"] = p.name, "m" if p.he == "he" else "f"
        c = r.random()
        if c < 0.4:
            req = f"{verb} {size}story about {p.name}"
        elif c < 0.7:
            kw["thing"] = r.choice(stories.THINGS)
            req = f"{verb} {size}story about {p.name} and {article(kw['thing'])}"
        else:
            kw["beast"] = r.choice(stories.BEASTS)
            req = f"{verb} {size}story about {article(kw['beast'])} {pick(r, 'named', 'called')} {p.name}"
    elif k < 0.9:
        kw["thing"] = r.choice(stories.THINGS)
        req = f"{verb} {size}story about {article(kw['thing'])}"
    else:
        kw["plot"] = r.choice(list(stories.PLOTS))
        req = f"{verb} {size}story about " + dict(lost="something that is lost", stranger="kindness", build="building something", afraid="courage", race="a race", storm="a storm", broken="honesty",
                                                journey="a journey", noise="a strange noise", seed="a plant", learn="learning", gift="a present", wish="a wish", rescue="a rescue")[kw["plot"]]
    text, f = stories.story(r, short=short, **kw)
    if r.random() < 0.15:
        text = stories.title(r, f) + "\n\n" + text
    msgs = turn(loosen(r, req + ("?" if "Can you" in req else ".")), text)
    if r.random() < 0.3:
        q = r.choice(((f"Who was {f['friend']}?", f"{f['friend']} was the friend of {f['hero']}."), ("What was the name of the hero?", f"The hero of the story was {f['hero']}."), ("What is the moral of the story?", f["moral"]),
                      (f"Where did {f['hero']} live?", f"{f['hero']} lived in {f['place']}.".replace("in an island", "on an island").replace("in a farm", "on a farm").replace("in a boat", "on a boat")),
                      ("Thank you, that was nice.", "You are welcome! Would you like another one?"), ("What was the hero called?", f"The hero was called {f['hero']}.")))
        msgs += turn(*q)
    elif r.random() < 0.12:
        msgs += turn(pick(r, "Another one, please.", "One more!", "Tell me another story.", "And another one?"), stories.story(r, short=True)[0])
    return msgs


def howto(r):
    key = r.choice(list(prose.HOWTO))
    return turn(loosen(r, pick(r, f"How do I {key}?", f"How can I {key}?", f"Explain how to {key}.", f"How do you {key}?", f"Tell me how to {key}.")), prose.howto(r, key))


def letter(r):
    p = person(r)
    text = prose.letter(r)
    return turn(loosen(r, pick(r, f"Write a letter to {p.name}.", f"Write a short letter to {p.name}.", f"Please write a letter to my friend {p.name}.")), "Dear " + p.name + "," + text[text.index(",") + 1:])


def memory(r):
    """The user says something about himself and asks later."""
    p = person(r, 0.4)
    town, animal, food, job, colour = r.choice(CITIES), r.choice(stories.PETS), r.choice(FOODS)["name"], r.choice(JOBS)["name"], r.choice(COLOURS["colours"])["name"]
    petname = person(r, 0.3).name
    age = r.randint(5, 90)
    items = r.sample((
        (f"My name is {p.name}.", "What is my name?", f"Your name is {p.name}."), (f"I am {p.name}.", "Who am I?", f"You are {p.name}."), (f"I live in {town}.", "Where do I live?", f"You live in {town}."),
        (f"I have a {animal} called {petname}.", f"What is my {animal} called?", f"Your {animal} is called {petname}."), (f"My favourite food is {food}.", "What is my favourite food?", f"Your favourite food is {food}."),
        (f"I work as {article(job)}.", "What is my job?", f"You work as {article(job)}."), (f"My favourite colour is {colour}.", "What is my favourite colour?", f"Your favourite colour is {colour}."),
        (f"I am {age} years old.", "How old am I?", f"You are {age} years old."), (f"The password is {petname.lower()}{age}.", "What was the password?", f"The password is {petname.lower()}{age}."),
        (f"My number is {r.randint(100, 999)}.", "", "")), r.choice((1, 2, 2, 3)))
    items = [i for i in items if i[1]] or [(f"My name is {p.name}.", "What is my name?", f"Your name is {p.name}.")]
    hello = pick(r, "Hi! ", "Hello. ", "", "")
    msgs = turn(hello + " ".join(i[0] for i in items), pick(r, "Nice to meet you! How can I help you?", "Thank you for telling me. What can I do for you?", "I will remember that. What would you like to know?", "Good to know! How can I help you?"))
    for _ in range(r.choice((0, 0, 1, 2))):
        q, a = fact(r)
        msgs += turn(loosen(r, q), a)
    for i in r.sample(items, r.randint(1, len(items))):
        msgs += turn(loosen(r, i[1]), i[2])
    if r.random() < 0.15:
        q = pick(r, "What is my sister's name?", "When is my birthday?", "What is my shoe size?", "What is my address?")
        msgs += turn(q, pick(r, "You have not told me that.", "I do not know. You have not told me.", "I am sorry, you have not told me that yet."))
    return msgs


def unknown(r):
    p = person(r, 0.5)
    full = f"{p.name} {r.choice(SURNAMES)}"
    q = pick(r, "What is the weather like today?", "What time is it?", "What is today's date?", "Who won the game yesterday?", f"Who is {full}?", f"What is the telephone number of {full}?", f"Where does {full} live?", "What is the price of gold today?",
             "What will the weather be tomorrow?", "What did I eat yesterday?", "Which numbers will win the lottery?", f"How many people live in {r.choice(CITIES)} today?", "What is in the news?", "What am I thinking of?", "What is the stock price of my company?",
             f"What did {full} say last week?", "Can you open my email?", "Call my mother.", "What is the meaning of zorblax?", f"What does \"{r.choice('bcdfglmnprst')}{r.choice('aeiou')}{r.choice('bdfgklmnprtvz')}{r.choice('aeiou')}x\" mean?", "Who will win the next election?",
             "Where are my keys?", f"When was {full} born?", "Which film is on tonight?", "Is the shop open now?")
    if q.startswith(("What is the weather", "What time", "What is today", "What will", "Is the shop", "Which film", "What is in the news", "Who won", "What is the price", "What is the stock")):
        a = pick(r, "I am sorry, I do not know. I cannot see what is happening now.", "I do not know that. I have no access to current information.", "I cannot look that up. I only know what I learned in training.")
    elif q.startswith(("Can you open", "Call")):
        a = pick(r, "I am sorry, I cannot do that. I can only write text.", "I cannot do that, because I only write text.")
    elif "mean" in q:
        a = pick(r, "I do not know that word.", "I am sorry, I do not know that word.")
    else:
        a = pick(r, "I am sorry, I do not know that.", "I do not know.", "I am afraid I do not know the answer to that.", "I am sorry, but I do not know.")
    return turn(loosen(r, q), a)


def system(r):
    """System prompts that change the style."""
    k = r.random()
    if k < 0.2:
        p = person(r)
        msgs = turn(pick(r, "Who are you?", "What is your name?", "Introduce yourself."), pick(r, f"I am {p.name}, your assistant.", f"My name is {p.name}. How can I help you?", f"I am {p.name}."))
        return [dict(role="system", content=pick(r, f"You are {p.name}, a friendly assistant.", f"Your name is {p.name}.", f"You are an assistant named {p.name}."))] + msgs
    if k < 0.4:
        q, a = fact(r)
        word = pick(r, "Ahoy!", "Well, well.", "Dear friend,", "Certainly!", "Good question!", "Beep.")
        return [dict(role="system", content=pick(r, f"Begin every answer with \"{word}\"", f"Always start your answer with: {word}"))] + turn(loosen(r, q), f"{word} {a}")
    if k < 0.55:
        q, a = fact(r)
        return [dict(role="system", content=pick(r, "Answer in capital letters.", "Write everything in capital letters.", "Use only capital letters."))] + turn(loosen(r, q), a.upper())
    if k < 0.7:
        c = r.choice(COUNTRIES)
        return [dict(role="system", content=pick(r, "Answer with one word.", "Answer as briefly as possible.", "Be very brief.", "Use as few words as possible."))] + turn(f"What is the capital of {c['name']}?", c["capital"])
    if k < 0.8:
        q, a = fact(r)
        end = pick(r, "Have a nice day!", "Anything else?", "Over.", "Good luck!")
        return [dict(role="system", content=pick(r, f"End every answer with \"{end}\"", f"Always finish your answer with: {end}"))] + turn(loosen(r, q), f"{a} {end}")
    conv = r.choice((greeting, facts, smalltalk, tell, identity, howto))(r)
    return [dict(role="system", content=pick(r, "You are a helpful assistant.", "You are a helpful assistant.", "You are a friendly and helpful assistant.", "Be polite.", "You are a useful assistant. Answer clearly."))] + conv


def simple_thought(r, msgs):
    """A reasoning text that fits a plain last answer."""
    q = next((m["content"] for m in reversed(msgs) if m["role"] == "user"), "")
    return pick(r, "The user asks a simple question. I can answer it directly.", f"The user writes: \"{q[:80]}\" I will answer in a friendly way.", "This is easy. I answer briefly.", "I know this. I will give a short answer.",
                "Let me think about what the user wants. A short, friendly answer is best.", "No calculation is needed here. I can answer at once.")


MIX = ((greeting, 5), (identity, 8), (smalltalk, 7), (open_talk, 9), (known, 10), (facts, 26), (about, 6), (kinds, 5), (tell, 16), (howto, 4), (letter, 2), (memory, 8), (unknown, 5), (system, 8))


def conversation(r):
    """A whole conversation; several topics may follow one another."""
    fns, weights = zip(*MIX)
    msgs = r.choices(fns, weights)[0](r)
    while r.random() < 0.25 and sum(len(m["content"]) for m in msgs) < 900:
        more = r.choices(fns, weights)[0](r)
        if more[0]["role"] == "system":
            continue
        msgs = msgs + more
    conv = dict(messages=msgs)
    if r.random() < 0.12:
        conv["thinking"], conv["effort"] = True, r.choice((50, 75, 75, 100))
        msgs[-1]["reasoning"] = simple_thought(r, msgs)
    elif r.random() < 0.04:
        at = max(i for i, m in enumerate(msgs) if m["role"] == "user")
        d = f"{r.choice(CALENDAR['weekdays'])['name']}, {r.randint(1, 28)} {r.choice(CALENDAR['months'])['name']} {r.randint(2024, 2030)}"
        msgs.insert(at, dict(role="latest_reminder", content=f"Today is {d}."))
        if r.random() < 0.7:
            msgs[at + 1:] = turn(pick(r, "What is today's date?", "Which day is it today?", "What day is it?"), f"Today is {d}.")
    return conv
