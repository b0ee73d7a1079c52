"""Plain English that is not a story: descriptions, definitions, how-to texts, facts from the tables, letters, small dialogues."""

import knowledge
import stories
from world import (ANIMALS, ANTONYMS, CALENDAR, CITIES, COLOURS, COUNTRIES, ELEMENTS, FOODS, JOBS, OBJECTS, UNITS, WORDS, article, cap, join,
                   number_word, person, pick)

PLURAL_VERB = {"is": "are", "has": "have", "eats": "eat"}


def animal(r, a):
    n, pl = a["name"], a.get("plural") or a["name"] + "s"
    s = [pick(r, f"{cap(article(n))} is {article(a['class'])}.", f"The {n} is {article(a['class'])}.", f"{cap(pl)} are {a['class']}s.") if a["class"] != "fish"
         else f"{cap(article(n))} is a fish."]
    more = []
    if a.get("young"):
        more.append(pick(r, f"A young {n} is called {article(a['young'])}.", f"The young of {article(n)} is called {article(a['young'])}."))
    if a.get("group"):
        more += [f"A group of {pl} is called {article(a['group'])}."]
    if a.get("sound"):
        more += [f"The sound that {article(n)} makes is called {article(a['sound'])}."]
    if a.get("diet"):
        eats = dict(carnivore="it eats meat", herbivore="it eats plants", omnivore="it eats plants and animals", insectivore="it eats insects").get(a["diet"])
        more.append(f"{cap(article(n))} is {article(a['diet'])}" + (f", which means that {eats}." if eats else "."))
    if a.get("home"):
        more.append(pick(r, f"Its home is often {article(a['home'])}.", f"You can find {pl} in a place like this: {a['home']}."))
    if isinstance(a.get("legs"), int):
        more.append(f"It has {number_word(a['legs'])} legs." if a["legs"] else "It has no legs.")
    if a.get("cover"):
        more.append(f"Its body is covered with {a['cover']}.")
    more.append(f"{cap(article(n))} can fly." if a.get("can_fly") else f"{cap(article(n))} cannot fly.")
    r.shuffle(more)
    s += more[:r.randint(2, len(more))]
    if a.get("fact"):
        s.insert(r.randint(1, len(s)), a["fact"])
    return " ".join(s)


def country(r, c):
    s = [pick(r, f"{c['name']} is a country in {c['continent']}.", f"The country {c['name']} lies in {c['continent']}.")]
    more = [pick(r, f"Its capital is {c['capital']}.", f"The capital of {c['name']} is {c['capital']}.", f"{c['capital']} is the capital of {c['name']}.")]
    if c["languages"]:
        more.append(f"People there speak {join(c['languages'])}." if len(c["languages"]) < 4 else f"Languages spoken there include {join(c['languages'][:3])}.")
    if c["currency"]:
        more.append(f"The currency of {c['name']} is the {c['currency'][0]}.")
    r.shuffle(more)
    return " ".join(s + more[:r.randint(1, 3)])


def element(r, e):
    s = [f"{e['name']} is a chemical element with the symbol {e['symbol']} and the atomic number {e['number']}.",
         f"The symbol of {e['name'].lower()} is {e['symbol']}.", f"{e['name']} is {article(e['category'])}.",
         f"At room temperature {e['name'].lower()} is a {e['state']}." if e["state"] in ("gas", "solid", "liquid") else "",
         f"{e['name']} is found in or used for {e['found_in_or_used_for']}." if e.get("found_in_or_used_for") else ""]
    s = [x for x in s if x]
    return " ".join([s[0]] + r.sample(s[1:], r.randint(1, len(s) - 1)))


def food(r, f):
    n = f["name"]
    s = [f"{cap(n)} is a kind of {f['kind']}." if f["count"] != "one" else f"{cap(article(n))} is {article(f['kind'])}.",
         f"The colour is usually {f['colour']}.", f"It tastes {f['taste']}.", f.get("fact") or ""]
    return " ".join(x for x in [s[0]] + r.sample(s[1:], r.randint(1, 3)) if x)


def thing(r, o):
    n = o["name"]
    return " ".join([pick(r, f"{cap(article(n))} is {article(o['kind'])} that is used for {o['used_for']}.", f"You use {article(n)} for {o['used_for']}.",
                          f"{cap(article(n))} is useful for {o['used_for']}.")] + r.sample([
                              f"It is usually made of {o['material']}.", f"You can often find it in this place: {o['found_in']}.",
                              f"{cap(n)}: {o['kind']}."], r.randint(0, 2)))


def job(r, j):
    n = j["name"]
    s = f"{cap(article(n))} {j['does']}" + pick(r, f" and works in {j['works_in']}.", f". The place of work is {j['works_in']}.", ".")
    if j.get("uses") and r.random() < 0.7:
        s += f" {cap(article(n))} uses {join(j['uses'])}."
    return s


def word(r, w):
    a, pos = w["word"], w["pos"]
    d = w["definition"]
    head = dict(noun=(f"The noun \"{a}\" means {d}.", f"{cap(a)}: {d}.", f"\"{cap(a)}\" is a noun. It means {d}."),
                verb=(f"To {a} means to {d}." if not d.startswith("to ") else f"To {a} means {d}.", f"The verb \"{a}\" means: {d}."),
                adjective=(f"The adjective \"{a}\" means {d}.", f"Something that is {a} is {d}."),
                adverb=(f"The adverb \"{a}\" means {d}.",)).get(pos, (f"{cap(a)} ({pos}): {d}.",))
    s = [r.choice(head)]
    if w.get("synonyms") and r.random() < 0.7:
        s.append(pick(r, f"Words with a similar meaning are {join(w['synonyms'])}.", f"A similar word is \"{w['synonyms'][0]}\"."))
    if w.get("antonyms") and r.random() < 0.8:
        s.append(f"The opposite of \"{a}\" is \"{w['antonyms'][0]}\".")
    if w.get("example") and r.random() < 0.8:
        s.append(f"For example: {cap(w['example'].rstrip('.'))}.")
    return " ".join(s)


def opposite(r, a):
    x, y = (a["a"], a["b"]) if r.random() < 0.5 else (a["b"], a["a"])
    return pick(r, f"The opposite of {x} is {y}.", f"{cap(x)} is the opposite of {y}.", f"If something is not {x}, it may be {y}." if a["pos"] == "adjective"
                else f"{cap(x)} and {y} are opposites.")


def calendar(r):
    m, d = r.choice(CALENDAR["months"]), r.choice(CALENDAR["weekdays"])
    f = r.choice(CALENDAR["fixed_days"])
    return pick(r, f"{m['name']} has {m['days']} days.", f"{m['name']} comes after {m['previous']} and before {m['next']}.",
                f"{d['name']} comes after {d['previous']} and before {d['next']}.", f"In the north, {m['name']} is in {m['season_north']}.",
                f"{m['name']} is month number {m['number']} of the year.", f"{f['name']} is on {f['month']} {f['day']}.", r.choice(CALENDAR["facts"]),
                CALENDAR["leap_year_rule"])


def unit(r):
    u = r.choice(UNITS["whole_number_facts"])
    x = r.choice(UNITS["units"])
    return pick(r, f"One {u['one']} is {u['is_']} {u['of']}.", f"There are {u['is_']} {u['of']} in one {u['one']}.", f"The symbol of the {x['name']} is {x['symbol']}.",
                f"The {x['name']} is a unit of {x['quantity']}.")


def colour(r):
    c = r.choice(COLOURS["colours"])
    m = r.choice(COLOURS["mixing_paint"])
    return pick(r, f"{cap(c['name'])} is the colour of {c['example']}.", f"If you mix {m['a']} and {m['b']} paint, you get {m['gives']}.",
                f"The colours of the rainbow are {join(COLOURS['rainbow'])}.", f"The primary colours of paint are {join(COLOURS['primary_paint'])}.",
                f"{cap(c['name'])} is a {c['feeling']} colour." if c.get("feeling") else f"{cap(c['name'])} is a colour.")


HOWTO = {
    "make a cup of tea": ("Fill the kettle with fresh water.", "Bring the water to the boil.", "Put a tea bag or a spoon of tea into the cup.", "Pour the hot water over it.",
                          "Wait for three to five minutes.", "Take out the tea and add milk or sugar if you like."),
    "plant a seed": ("Fill a pot with earth.", "Make a small hole with your finger.", "Put the seed into the hole and cover it.", "Water it gently.",
                     "Put the pot in a light place.", "Keep the earth moist and be patient."),
    "brush your teeth": ("Wet your toothbrush.", "Put a little toothpaste on it.", "Brush all sides of your teeth for two minutes.", "Rinse your mouth with water.",
                         "Clean the brush and put it away."),
    "boil an egg": ("Put water in a small pot.", "Bring it to the boil.", "Lower the egg into the water with a spoon.", "Boil it for six minutes if you like it soft, or ten minutes if you like it hard.",
                    "Cool it in cold water.", "Peel it and add a little salt."),
    "tie your shoes": ("Cross the two laces and pull one under the other.", "Pull them tight.", "Make a loop with one lace.", "Lay the other lace around the loop.",
                       "Pull it through to make a second loop.", "Pull both loops tight."),
    "make a sandwich": ("Take two slices of bread.", "Spread butter on them.", "Put cheese, tomato or whatever you like on one slice.", "Lay the other slice on top.",
                        "Cut it in half and enjoy it."),
    "write a letter": ("Write the date at the top.", "Begin with a greeting, such as \"Dear Anna\".", "Say why you are writing.", "Write what you want to tell.",
                       "End with a friendly closing and your name.", "Put it in an envelope and add a stamp."),
    "clean a room": ("Open the window.", "Pick up everything from the floor.", "Put things back in their places.", "Wipe the dust from the shelves.", "Sweep or vacuum the floor.",
                     "Take out the rubbish."),
    "fall asleep": ("Turn off bright screens an hour before bed.", "Make the room dark and cool.", "Lie down comfortably.", "Breathe slowly and deeply.",
                    "Think of something pleasant.", "If you cannot sleep, read a little and try again."),
    "make pancakes": ("Mix two eggs, a cup of flour and a cup of milk.", "Add a pinch of salt.", "Heat a little butter in a pan.", "Pour in some batter and spread it thin.",
                      "Turn the pancake when the edges are brown.", "Serve it with sugar, jam or fruit."),
    "learn a new word": ("Read the word and say it aloud.", "Look up what it means.", "Write a sentence with it.", "Use it the next day in a talk.", "Repeat it after a week."),
    "save water": ("Turn off the tap while you brush your teeth.", "Take a short shower instead of a bath.", "Repair taps that drip.", "Water plants in the evening.",
                   "Use the washing machine only when it is full."),
    "study for a test": ("Find out what the test is about.", "Make a plan for several days.", "Read your notes and mark what is important.", "Explain it to somebody else in your own words.",
                         "Take short breaks.", "Sleep well the night before."),
    "ride a bicycle": ("Put on a helmet.", "Sit on the saddle with one foot on the ground.", "Push off and begin to pedal.", "Look ahead and not at your feet.",
                       "Use both brakes gently to stop."),
    "bake bread": ("Mix flour, water, yeast and salt.", "Knead the dough for ten minutes.", "Let it rise in a warm place for an hour.", "Form a loaf.",
                   "Bake it in a hot oven for about forty minutes.", "Let it cool before you cut it."),
    "take care of a cat": ("Give it fresh water and food every day.", "Keep its box clean.", "Brush its fur.", "Play with it.", "Take it to a vet when it is ill."),
    "wash your hands": ("Wet your hands with clean water.", "Take some soap.", "Rub your hands for twenty seconds, also between the fingers.", "Rinse off the soap.", "Dry your hands well."),
    "make a fire safely": ("Choose a place away from trees.", "Lay a ring of stones.", "Put small dry sticks in the middle.", "Light them carefully.", "Add bigger pieces of wood little by little.",
                           "Keep water near, and put the fire out completely at the end."),
    "draw a cat": ("Draw a circle for the head and a bigger oval for the body.", "Add two triangles for the ears.", "Draw two eyes, a small nose and a mouth.", "Add whiskers on both sides.",
                   "Draw four legs and a long tail.", "Colour it as you like."),
    "find a lost thing": ("Stay calm and think where you had it last.", "Go back to that place.", "Look carefully in one corner after another.", "Ask other people.",
                          "Look again in the places where you have already looked."),
}
ORDER = ("First", "Then", "Next", "After that", "Finally")


def howto(r, key=None):
    key = key or r.choice(list(HOWTO))
    steps = list(HOWTO[key])
    style = r.random()
    intro = pick(r, f"Here is how to {key}:", f"To {key}, follow these steps:", f"This is how you can {key}:", f"It is not hard to {key}.")
    if style < 0.55:
        return intro + "\n\n" + "\n".join(f"{i}. {s}" for i, s in enumerate(steps, 1))
    if style < 0.7:
        return intro + "\n\n" + "\n".join(f"- {s}" for s in steps)
    out = []
    for i, s in enumerate(steps):
        w = ORDER[0] if i == 0 else ORDER[-1] if i == len(steps) - 1 else r.choice(ORDER[1:4])
        out.append(f"{w}, {s[0].lower()}{s[1:]}")
    return intro.rstrip(":") + ("" if intro.endswith(".") else ".") + " " + " ".join(out)


WHY = (
    ("Why is the sky blue?", "The sky looks blue because air scatters blue light more than red light. Sunlight holds all colours, and the blue part is spread over the whole sky."),
    ("Why do leaves fall in autumn?", "In autumn there is less light and it gets cold. Trees save water and strength by dropping their leaves, and in spring they grow new ones."),
    ("Why do we sleep?", "Sleep lets the body rest and repair itself. The brain also sorts what it has learned during the day."),
    ("Why is the sea salty?", "Rivers carry small amounts of salt from the rocks into the sea. The water evaporates, but the salt stays."),
    ("Why does ice float?", "Ice is lighter than water, because water expands when it freezes. So ice floats on top."),
    ("Why do birds sing?", "Birds sing to find a partner and to tell other birds that this place is taken."),
    ("Why do we have seasons?", "We have seasons because the axis of the Earth is tilted. For half of the year the north leans towards the sun, and for the other half it leans away."),
    ("Why do cats purr?", "Cats usually purr when they feel safe and content. Sometimes they also purr to calm themselves."),
    ("How does rain form?", "The sun warms water, and some of it rises into the air as vapour. High up it cools and forms clouds. When the drops become heavy, they fall as rain."),
    ("What is a rainbow?", "A rainbow appears when sunlight shines through drops of water. The drops split the light into its colours: red, orange, yellow, green, blue, indigo and violet."),
    ("Why does the moon change its shape?", "The moon does not really change its shape. We see different parts of its bright side while it travels around the Earth."),
    ("How do bees make honey?", "Bees collect sweet nectar from flowers. In the hive they thicken it and store it in wax cells, where it becomes honey."),
    ("What is a computer?", "A computer is a machine that follows instructions very fast. It can store numbers, texts and pictures and work with them."),
    ("What is the internet?", "The internet is a network that connects computers all over the world, so that they can exchange messages and data."),
    ("What is a program?", "A program is a list of instructions that tells a computer what to do, step by step."),
    ("Why do we need water?", "Our bodies consist mostly of water. It carries food and oxygen to all parts of the body and keeps us cool."),
    ("How does a plant grow?", "A plant takes in water through its roots and air through its leaves. With the light of the sun it makes its own food and grows."),
    ("What is gravity?", "Gravity is the force that pulls things towards each other. It makes an apple fall and keeps the moon near the Earth."),
    ("Why do we yawn?", "We yawn when we are tired or bored. Nobody knows the reason for certain, but it may help to keep the brain awake."),
    ("What is electricity?", "Electricity is the movement of tiny charged particles. We use it for light, heat and machines."),
    ("How do fish breathe?", "Fish breathe with gills. The gills take oxygen out of the water."),
    ("What is the sun?", "The sun is a star, a huge ball of hot gas. It gives the Earth light and warmth."),
    ("How far away is the moon?", "The moon is about 384,000 kilometres away from the Earth."),
    ("How many planets are there?", "There are eight planets in our solar system: Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune."),
    ("What is the largest planet?", "The largest planet of our solar system is Jupiter."),
    ("What is the largest ocean?", "The largest ocean is the Pacific Ocean."),
    ("What is the largest animal?", "The largest animal is the blue whale."),
    ("What is the tallest animal?", "The tallest animal is the giraffe."),
    ("What is the fastest land animal?", "The fastest land animal is the cheetah."),
    ("What is the highest mountain?", "The highest mountain on Earth is Mount Everest."),
    ("What is the longest river?", "The Nile and the Amazon are the longest rivers on Earth."),
    ("How many continents are there?", "There are seven continents: Africa, Antarctica, Asia, Europe, North America, Oceania and South America."),
    ("What is the boiling point of water?", "Water boils at 100 degrees Celsius, or 212 degrees Fahrenheit."),
    ("At what temperature does water freeze?", "Water freezes at 0 degrees Celsius, or 32 degrees Fahrenheit."),
    ("How many sides does a triangle have?", "A triangle has three sides."),
    ("How many sides does a square have?", "A square has four sides, and all of them are equally long."),
    ("How many hours are in a day?", "A day has 24 hours."), ("How many minutes are in an hour?", "An hour has 60 minutes."),
    ("How many days are in a year?", "A year has 365 days, and a leap year has 366."), ("How many letters are in the alphabet?", "The English alphabet has 26 letters."),
    ("Who wrote Alice in Wonderland?", "Lewis Carroll wrote \"Alice's Adventures in Wonderland\"."), ("Who wrote The Jungle Book?", "Rudyard Kipling wrote \"The Jungle Book\"."),
    ("Who wrote The Wizard of Oz?", "L. Frank Baum wrote \"The Wonderful Wizard of Oz\"."), ("Who wrote The Secret Garden?", "Frances Hodgson Burnett wrote \"The Secret Garden\"."),
    ("Who wrote Peter Rabbit?", "Beatrix Potter wrote \"The Tale of Peter Rabbit\"."),
    ("What is SQL?", "SQL is a language for asking and changing data in a database."), ("What is Python?", "Python is a programming language that is easy to read and widely used."),
    ("What is Rust?", "Rust is a programming language that is fast and helps to avoid errors with memory."), ("What is a database?", "A database is a place where data is stored in an ordered way, so that it can be found again quickly."),
    ("What is a file?", "A file is a named piece of data that a computer keeps, for example a text or a picture."), ("What is Linux?", "Linux is a free operating system that is used on servers, phones and many other machines."),
    ("What is a compiler?", "A compiler is a program that translates source code into instructions for the machine."), ("What is a bug?", "In a program, a bug is a mistake that makes it behave in the wrong way."),
    ("What is JSON?", "JSON is a simple text format for data. It uses objects in braces and lists in brackets."), ("What is a token?", "For a language model, a token is a small piece of text, such as a word or a part of a word."),
    ("What is a language model?", "A language model is a program that has learned from texts which word is likely to come next, and so can write and answer."),
)


def about(r):
    """(topic, text): facts about one thing from the tables."""
    k = r.random()
    if k < 0.2:
        a = r.choice(ANIMALS)
        return a["name"], animal(r, a)
    if k < 0.4:
        c = r.choice(COUNTRIES)
        return c["name"], country(r, c)
    if k < 0.5:
        e = r.choice(ELEMENTS)
        return e["name"].lower(), element(r, e)
    if k < 0.6:
        f = r.choice(FOODS)
        return f["name"], food(r, f)
    if k < 0.75:
        o = r.choice(OBJECTS)
        return o["name"], thing(r, o)
    j = r.choice(JOBS)
    return j["name"], job(r, j)


def scene(r):
    """A few sentences about an everyday moment."""
    p, q = person(r), person(r)
    rooms = ("kitchen", "garden", "living room", "bedroom", "hall", "office", "shop", "library", "park", "workshop")
    acts = (f"{p.name} was in the {r.choice(rooms)} and read a book about {r.choice(ANIMALS)['plural']}.", f"{p.name} went to {r.choice(CITIES)} by train.",
            f"{p.name} bought {r.choice(FOODS)['name']} and {r.choice(FOODS)['name']} at the market.", f"{p.name} works as {article(r.choice(JOBS)['name'])} and gets up early.",
            f"{p.name} was looking for {p.his} {r.choice(OBJECTS)['name']}.", f"{p.name} lives in {r.choice(CITIES)} with {p.his} {r.choice(stories.PETS)}.")
    second = (f"{q.name} came in and asked, \"What are you doing?\"", f"{p.His} friend {q.name} was late, as always.", f"{p.He} wanted to call {q.name}, but the telephone was broken.",
              f"{q.name} had made {r.choice(stories.TREATS)}.", f"{r.choice(stories.WEATHER)} {p.He} was {r.choice(stories.FEEL_GOOD)}.",
              f"{q.name} told {p.him} about {article(r.choice(stories.LOOKS) + ' ' + r.choice(stories.THINGS))}.")
    third = (f"In the evening they cooked together and talked about {r.choice(stories.SEASONS)}.", f"\"Let us go to {r.choice(stories.WOODS)},\" said {q.name}.",
             f"Later {p.he} wrote everything down in a small {r.choice(stories.LOOKS)} book.", f"It was {number_word(r.randint(1, 12))} o'clock when they said goodbye.",
             f"Then {p.he} had a cup of tea and went to bed.", f"{q.name} laughed and said, \"You always forget something.\"",
             f"They had known each other for {number_word(r.randint(2, 40))} years.")
    return " ".join(r.choice(x) for x in (acts, second, third)[:r.choice((2, 3, 3))])


def letter(r):
    p, q = person(r), person(r)
    body = r.sample((f"Thank you for your letter and for the {r.choice(stories.LOOKS)} {r.choice(stories.THINGS)}.", f"Here in {r.choice(CITIES)} the weather is {pick(r, 'fine', 'bad', 'cold', 'warm')}.",
                     f"Last week I went to {r.choice(stories.WOODS)} with {person(r).name}.", f"Our {r.choice(stories.PETS)} is well and eats too much.",
                     f"I am learning to {r.choice(stories.SKILLS)}, and it is harder than I thought.", f"Will you visit me in {r.choice(CALENDAR['months'])['name']}?",
                     "I hope that you are well.", f"My sister now works as {article(r.choice(JOBS)['name'])}.", "Please write back soon."), r.randint(3, 5))
    return f"Dear {p.name},\n\n" + " ".join(body) + pick(r, f"\n\nYours,\n{q.name}", f"\n\nWith love,\n{q.name}", f"\n\nBest wishes,\n{q.name}")


def dialogue(r):
    p, q = person(r), person(r)
    a, b = r.sample(ANIMALS, 2)
    c = r.choice(COUNTRIES)
    lines = r.choice((
        (f"Do you know what the young of {article(a['name'])} is called?", f"Yes, it is called {article(a['young'])}." if a.get("young") else "No, I do not know.", "You are right."),
        (f"What is the capital of {c['name']}?", f"I think it is {c['capital']}.", "Yes, that is correct."),
        ("Where are you going?", f"I am going to {r.choice(stories.WOODS)}.", "May I come with you?", "Of course."),
        ("Have you had breakfast?", f"Yes, I had {r.choice(stories.TREATS)}.", "That sounds good."),
        (f"Which do you like better, {a['plural']} or {b['plural']}?", f"I like {a['plural']} better.", "Why?", a.get("fact") or "I cannot say why."),
        ("What time is it?", f"It is {number_word(r.randint(1, 12))} o'clock.", "Then we must hurry."),
        ("How old are you?", f"I am {number_word(r.randint(5, 90))} years old.", "You look younger."),
        ("Can you help me?", "What do you need?", f"I am looking for my {r.choice(stories.THINGS)}.", f"It is on the {pick(r, 'table', 'chair', 'shelf', 'bed')}.")))
    if r.random() < 0.5:
        return "\n".join(f"{(p, q)[i % 2].name}: {s}" for i, s in enumerate(lines))
    return "\n".join(f"\"{s[:-1]}{',' if s.endswith('.') else s[-1]}\" {'asked' if s.endswith('?') else 'said'} {(p, q)[i % 2].name}." for i, s in enumerate(lines))


def passage(r):
    """One document of plain text."""
    k = r.random()
    if k < 0.24:
        return " ".join(about(r)[1] for _ in range(1)) + ("" if r.random() < 0.5 else "\n\n" + about(r)[1])
    if k < 0.42:
        return "\n\n".join(word(r, r.choice(WORDS)) for _ in range(r.randint(1, 4)))
    if k < 0.50:
        return " ".join(opposite(r, r.choice(ANTONYMS)) for _ in range(r.randint(1, 4)))
    if k < 0.58:
        return " ".join(r.choice((calendar, unit, colour))(r) for _ in range(r.randint(1, 4)))
    if k < 0.64:
        return howto(r)
    if k < 0.68:
        item = r.choice(knowledge.ITEMS)
        return knowledge.sentence(r, item)
    if k < 0.72:
        q, a = r.choice(WHY)
        return pick(r, f"{q} {a}", a, f"{q}\n\n{a}")
    if k < 0.84:
        return "\n\n".join(scene(r) for _ in range(r.randint(1, 3)))
    if k < 0.91:
        return letter(r)
    return dialogue(r)
