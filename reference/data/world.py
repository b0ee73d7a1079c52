"""Tables and small words that the generators share. Everything that draws takes a random.Random, so a seed fixes the output."""

import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def table(name):
    with open(os.path.join(HERE, "tables", name + ".json"), encoding="utf-8") as f:
        return json.load(f)


ANIMALS = table("animals")
FOODS = table("foods")
OBJECTS = table("objects")
JOBS = table("occupations")
ELEMENTS = table("elements")
COUNTRIES = [c for c in table("countries") if c["un_member"] and c["capital"]]
CALENDAR = table("calendar")
COLOURS = table("colours")
UNITS = table("units")
ANTONYMS = [a for a in table("antonyms")]
COMMON_ANTONYMS = [a for a in ANTONYMS if a.get("common")]
WORDS = [w for w in table("words") if w.get("definition")]
KINDS = table("kinds")
_names = table("first_names")
BOYS, GIRLS = _names["male_common"], _names["female_common"]
RARE_BOYS, RARE_GIRLS = _names["male"], _names["female"]

SURNAMES = ("Baker Carter Mason Hill Wood Brook Stone Field Marsh Lane Green Brown White Grey Young King Fisher Shepherd Miller Potter "
            "Cooper Walker Turner Parker Hunter Archer Bell Frost Winter Snow Rivers Banks Fox Wolfe Finch Swan Rose Thorn Ash Birch").split()
CITIES = ("Paris London Rome Madrid Berlin Vienna Lisbon Dublin Oslo Prague Athens Cairo Nairobi Tokyo Delhi Sydney Toronto Chicago Boston "
          "Seattle Denver Lima Bogota Havana Quito Seoul Hanoi Manila Jakarta Riga Tallinn Vilnius Warsaw Budapest Zagreb Sofia Geneva "
          "Milan Naples Porto Seville Lyon Bruges Antwerp Hamburg Munich Cologne Leeds Bristol York Cork Bergen Malmo Turku").split()


def article(noun):
    return ("an " if noun[0].lower() in "aeiou" and not noun.startswith(("uni", "use", "one", "eu")) or noun.startswith(("hour", "honest"))
            else "a ") + noun


def cap(s):
    return s[:1].upper() + s[1:]


def join(items, last="and"):
    items = list(items)
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + ("," if len(items) > 2 and last == "and" and len(items[0]) > 6 else "") + f" {last} " + items[-1]


class Person:
    def __init__(self, name, sex):
        self.name = name
        self.he, self.him, self.his = ("he", "him", "his") if sex == "m" else ("she", "her", "her") if sex == "f" else ("it", "it", "its")
        self.He = cap(self.he)
        self.His = cap(self.his)


def person(r, rare=0.15, shift=0):
    """Half of the common names are drawn by rank, so that a greedy reader has a favourite."""
    boy = r.random() < 0.5
    common = BOYS if boy else GIRLS
    if r.random() < rare:
        name = r.choice(RARE_BOYS if boy else RARE_GIRLS)
    elif r.random() < 0.5:
        name = common[(min(int(r.expovariate(1 / 6)), 40) * 37 + 11 + shift) % len(common)]
    else:
        name = r.choice(common)
    return Person(name, "m" if boy else "f")


def pick(r, *options):
    """One option, drawn evenly; options may be strings with or without fields already filled."""
    return r.choice(options)


def number_word(n):
    small = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
             "nineteen").split()
    tens = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
    if n < 20:
        return small[n]
    if n < 100:
        return tens[n // 10] + ("-" + small[n % 10] if n % 10 else "")
    return str(n)
