"""Conversations that ask for work: sums, sorting, dates, JSON, tool calls, recall from a text, shell commands. Half of the sums think."""

import json
import lzma
import os

import chat
import prose
import stories
from chat import loosen, turn
from world import (ANIMALS, CALENDAR, CITIES, COLOURS, COUNTRIES, FOODS, GIRLS, HERE, JOBS, OBJECTS, SURNAMES, article, cap, join,
                   number_word, person, pick)

_tldr = []


def tldr():
    if not _tldr:
        with lzma.open(os.path.join(HERE, "natural", "tldr.jsonl.xz"), "rt", encoding="utf-8") as f:
            for line in f:
                p = json.loads(line)
                if len(p["answer"]) < 120 and "\n" not in p["answer"]:
                    _tldr.append(p)
        weight = {}
        for p in _tldr:
            weight[p["command"].split()[0]] = weight.get(p["command"].split()[0], 0) + 1
    return _tldr


EVERYDAY = set("ls cd cp mv rm mkdir rmdir cat head tail less grep find tar gzip gunzip zip unzip chmod chown ln touch echo sort uniq wc cut sed awk ps kill top df du free "
               "mount ping curl wget ssh scp rsync git python make gcc diff date cal history whoami uname hostname man which xargs tee docker apt pip npm sqlite3 psql "
               "systemctl journalctl crontab base64 md5sum sha256sum sleep watch".split())


def shell(r):
    pairs = tldr()
    p = r.choice(pairs)
    if r.random() < 0.6:
        for _ in range(40):
            if p["command"].split()[0] in EVERYDAY and p["platform"] in ("common", "linux"):
                break
            p = r.choice(pairs)
    cmd, ask = p["command"], p["instruction"].rstrip(".")
    low = ask[0].lower() + ask[1:]
    q = pick(r, f"Give me the {cmd} command: {ask}.", f"{ask} with {cmd}.", f"How do I {low} with {cmd}?", f"Use {cmd}: {ask}.", f"Write a shell command with {cmd}. {ask}.", f"Shell command ({cmd}): {ask}")
    a = p["answer"]
    return dict(messages=turn(loosen(r, q), pick(r, a, a, f"`{a}`", f"```sh\n{a}\n```", f"Use this command:\n\n```sh\n{a}\n```") if "`" not in a else a))


def split(n):
    """Hundreds, tens and ones that are not zero."""
    return [x for x in (n // 100 * 100, n % 100 // 10 * 10, n % 10) if x] or [0]


def digits(n, places):
    return [n // 10 ** i % 10 for i in range(places)]


def add_steps(a, b):
    """One place after the other from the ones up, with what is carried."""
    out, carry = [], 0
    places = len(str(max(a, b)))
    for i, (x, y) in enumerate(zip(digits(a, places), digits(b, places))):
        s = x + y + carry
        step = f"{x} + {y}" + (" + 1" if carry else "") + f" = {s}"
        carry = s // 10
        out.append(step + (f", write {s % 10}, carry 1" if carry and i + 1 < places else f", write {s}"))
    return "; ".join(out) + "."


def subtract_steps(a, b):
    """The same with what is borrowed; a >= b."""
    out, borrow = [], 0
    places = len(str(a))
    for x, y in zip(digits(a, places), digits(b, places)):
        d = x - y - borrow
        take = f" - {y}" + (" - 1" if borrow else "")
        borrow = int(d < 0)
        out.append((f"{x}{take} is too small, borrow 1, 1{x}{take} = {d + 10}, write {d + 10}") if borrow else f"{x}{take} = {d}, write {d}")
    return "; ".join(out) + "."


def multiply_steps(a, b):
    """Hundreds, tens and ones of a times b, then their sum."""
    parts = [x * b for x in split(a)]
    out = [f"{x} * {b} = {x * b}" for x in split(a)]
    total = parts[0]
    for x in parts[1:]:
        out.append(f"{total} + {x} = {total + x}")
        total += x
    return ", ".join(out) + "."


def divide_steps(a, b):
    """Counts up by b until a is reached, a multiple of b."""
    n = a // b
    return f"Counting by {b}: {', '.join(str(b * i) for i in range(1, n + 1))}. " + (f"That is {n} steps" if n > 1 else "That is one step") + f", so {n} times {b} is {a}."


def arithmetic(r):
    """(question, reasoning, answer). Without reasoning, answers show their steps, but for numbers up to 10."""
    k = r.random()
    big = r.choices((10, 20, 99, 999), (15, 20, 30, 35))[0]
    a, b = r.randint(0, big), r.randint(0, r.choice((big, big, min(big, 99))))
    if r.random() < 0.5:
        a, b = b, a
    easy = max(a, b) <= 10
    if k < 0.36:
        q = pick(r, f"What is {a} + {b}?", f"What is {a} + {b}?", f"What is {a} plus {b}?", f"{a} + {b} = ?", f"Add {a} and {b}.", f"Calculate {a} + {b}.", f"How much is {a} plus {b}?", f"{a}+{b}", f"What's {a} + {b}?")
        s, t = a + b, add_steps(a, b)
        return q, t, f"{a} + {b} = {s}." if easy else cap(f"{t} So {a} + {b} = {s}.")
    if k < 0.66:
        a, b = max(a, b), min(a, b)
        q = pick(r, f"What is {a} - {b}?", f"What is {a} - {b}?", f"What is {a} minus {b}?", f"{a} - {b} = ?", f"Subtract {b} from {a}.", f"Calculate {a} - {b}.", f"{a}-{b}", f"How much is {a} minus {b}?")
        s, t = a - b, subtract_steps(a, b)
        return q, t, f"{a} - {b} = {s}." if easy else cap(f"{t} So {a} - {b} = {s}.")
    if k < 0.78:
        a, b = r.randint(0, 12), r.randint(0, 12)
        if r.random() < 0.4:
            a = r.randint(11, 99)
        q = pick(r, f"What is {a} times {b}?", f"What is {a} * {b}?", f"{a} x {b} = ?", f"Multiply {a} by {b}.", f"Calculate {a} * {b}.", f"{a}*{b}", f"How much is {a} times {b}?")
        s, t = a * b, multiply_steps(a, b)
        return q, t, f"{a} * {b} = {s}." if a <= 12 else f"{t} So {a} * {b} = {s}."
    if k < 0.86:
        b, s = r.randint(1, 12), r.randint(1, 12)
        a = b * s
        q = pick(r, f"What is {a} divided by {b}?", f"Divide {a} by {b}.", f"{a} / {b} = ?", f"What is {a} / {b}?")
        return q, divide_steps(a, b), pick(r, f"{a} divided by {b} is {s}.", f"{a} / {b} = {s}.")
    p, o = person(r), r.choice(("apples", "books", "coins", "eggs", "stones", "cards", "pencils", "flowers", "cakes", "balls", "shells"))
    a, b = max(a, 2), max(b, 1)
    if r.random() < 0.5:
        q = pick(r, f"{p.name} has {a} {o} and gets {b} more. How many {o} does {p.he} have now?", f"{p.name} has {a} {o}. {p.He} buys {b} more. How many {o} are there in all?")
        t = f"{a} + {b}: {add_steps(a, b)}"
        return q, t, t + pick(r, f" So {p.name} has {a + b} {o} now.", f" So there are {a + b} {o}.")
    a, b = max(a, b), min(a, b)
    q = f"{p.name} has {a} {o} and gives away {b}. How many {o} does {p.he} have left?"
    t = f"{a} - {b}: {subtract_steps(a, b)}"
    return q, t, t + f" So {p.name} has {a - b} {o} left."


def sort_steps(xs, down):
    """The largest or smallest of what is left, each time."""
    left, out = list(xs), []
    while len(left) > 1:
        x = (max if down else min)(left)
        out.append(f"of {', '.join(map(str, left))} the {'largest' if down else 'smallest'} is {x}")
        left.remove(x)
    return cap("; ".join(out)) + f"; {left[0]} is left."


def comparison(r):
    k = r.random()
    if k < 0.3:
        a, b = r.sample(range(0, 1000 if r.random() < 0.5 else 100), 2)
        big = r.random() < 0.6
        x = max(a, b) if big else min(a, b)
        word = "larger" if big else "smaller"
        return f"Which number is {word}, {a} or {b}?", f"{max(a, b)} is larger than {min(a, b)}. The question asks for the {word} one.", pick(r, f"{x} is {word}.", f"The {word} number is {x}.")
    if k < 0.6:
        n = r.randint(3, 7)
        xs = r.sample(range(0, r.choice((30, 100, 1000, 1000))), n)
        down = r.random() < 0.3
        ys = sorted(xs, reverse=down)
        q = pick(r, f"Sort these numbers{' from largest to smallest' if down else ''}: {', '.join(map(str, xs))}", f"Sort {', '.join(map(str, xs))}{' in descending order' if down else ''}.")
        return q, sort_steps(xs, down), ", ".join(map(str, ys))
    if k < 0.75:
        n = r.randint(3, 5)
        xs = r.sample([f["name"] for f in FOODS] + [o["name"] for o in OBJECTS], n)
        ys = sorted(xs)
        return f"Sort these words by the alphabet: {', '.join(xs)}", "The first letters are " + ", ".join(f"{y[0]} for {y}" for y in ys) + ".", ", ".join(ys)
    if k < 0.85:
        w = r.choice([a["name"] for a in ANIMALS if a["name"].isalpha()])
        return pick(r, f"How many letters does the word \"{w}\" have?", f"Count the letters of \"{w}\"."), f"{w}: {', '.join(w)}. That is {len(w)} letters.", f"The word \"{w}\" has {len(w)} letters."
    if k < 0.92:
        w = r.choice([a["name"] for a in ANIMALS if a["name"].isalpha()])
        return pick(r, f"Spell the word \"{w}\".", f"How do you spell {w}?"), f"The word is {w}.", "-".join(w) if r.random() < 0.5 else ", ".join(w)
    a = r.randint(0, 200)
    return pick(r, f"Is {a} even or odd?", f"Is {a} an even number?"), f"The last digit of {a} is {a % 10}, and that is {'odd' if a % 2 else 'even'}.", f"{a} is {'odd' if a % 2 else 'even'}."


def dates(r):
    """(question, reasoning, answer); answers without reasoning show their steps, as in arithmetic."""
    d = r.choice(CALENDAR["weekdays"])
    n = r.randint(1, 9)
    names = [w["name"] for w in CALENDAR["weekdays"]]
    i = names.index(d["name"])
    if r.random() < 0.6:
        t = names[(i + n) % 7]
        path = ", ".join(names[(i + j) % 7] for j in range(1, n + 1))
        days = f"{n} day{'s' if n > 1 else ''}"
        steps = f"I count on from {d['name']}: {path}."
        return f"Today is {d['name']}. Which day is it in {days}?", steps, f"{steps} So in {days} it is {t}."
    h, m = r.randint(1, 12), r.randint(1, 10)
    t = (h + m - 1) % 12 + 1
    steps = f"{h} + {m} = {h + m}" + (f", and {h + m} - 12 = {t}." if h + m > 12 else ".")
    return f"It is {h} o'clock. What time is it in {m} hour{'s' if m > 1 else ''}?", steps, f"{steps} So it is {t} o'clock then."


def compute(r):
    q, t, a = r.choices((arithmetic, comparison, dates), (8, 4, 1))[0](r)
    msgs = turn(loosen(r, q), a)
    if r.random() < 0.5:
        msgs[1]["content"] = cap(a[a.index(". So ") + 5:]) if ". So " in a else a
        msgs[1]["reasoning"] = t
        return dict(messages=msgs, thinking=True, effort=r.choice((50, 75, 75, 75, 100)))
    return dict(messages=msgs)


def record(r):
    """(fields, sentence): a made-up record and a text that holds it."""
    p = person(r, 0.4)
    k = r.randrange(5)
    if k == 0:
        f = dict(name=f"{p.name} {r.choice(SURNAMES)}", age=r.randint(4, 95), city=r.choice(CITIES))
        return f, pick(r, f"{f['name']} is {f['age']} years old and lives in {f['city']}.", f"My neighbour {f['name']}, {f['age']}, comes from {f['city']}.", f"In {f['city']} I met {f['name']}, who is {f['age']}.")
    if k == 1:
        f = dict(item=r.choice(OBJECTS)["name"], price=r.randint(1, 500), colour=r.choice(COLOURS["colours"])["name"])
        return f, pick(r, f"The {f['colour']} {f['item']} costs {f['price']} dollars.", f"I paid {f['price']} dollars for {article(f['colour'])} {f['item']}.", f"For sale: one {f['item']}, {f['colour']}, {f['price']} dollars.")
    if k == 2:
        f = dict(animal=r.choice(ANIMALS)["name"], name=p.name, weight=r.randint(1, 900))
        return f, pick(r, f"{f['name']} is {article(f['animal'])} and weighs {f['weight']} kilograms.", f"Our {f['animal']} {f['name']} weighs {f['weight']} kilograms.")
    if k == 3:
        f = dict(event=r.choice(("concert", "meeting", "party", "race", "lesson", "wedding", "dinner", "exam")), day=r.choice(CALENDAR["weekdays"])["name"], hour=r.randint(1, 23), place=r.choice(CITIES))
        return f, pick(r, f"The {f['event']} is on {f['day']} at {f['hour']} o'clock in {f['place']}.", f"We meet in {f['place']} for the {f['event']}, on {f['day']} at {f['hour']}.", f"Please come to the {f['event']} in {f['place']} on {f['day']}. It begins at {f['hour']} o'clock.")
    f = dict(name=p.name, job=r.choice(JOBS)["name"], married=r.random() < 0.5, children=r.randint(0, 6))
    return f, pick(r, f"{f['name']} works as {article(f['job'])}, is {'married' if f['married'] else 'not married'} and has {number_word(f['children'])} children.", f"{f['name']} is {article(f['job'])}. {p.He} is {'married' if f['married'] else 'not married'} and has {f['children']} children.")


def js(r, x):
    return json.dumps(x, ensure_ascii=False) if r.random() < 0.6 else json.dumps(x, ensure_ascii=False, indent=2)


def extract(r):
    k = r.random()
    f, s = record(r)
    keys = list(f)
    if k < 0.4:
        if r.random() < 0.4:
            keys = r.sample(keys, r.randint(1, len(keys)))
        q = pick(r, f"Extract {join(keys)} as JSON: {s}", f"Turn this into JSON with the keys {', '.join(keys)}: {s}", f"{s}\n\nWrite this as JSON with the keys {join(keys)}.", f"Text: {s}\nKeys: {', '.join(keys)}\nAnswer with JSON.")
        return dict(messages=turn(q, js(r, {x: f[x] for x in keys})))
    if k < 0.65:
        types = {str: "string", int: "integer", bool: "boolean"}
        schema = dict(type="object", properties={x: dict(type=types[type(f[x])]) for x in keys}, required=keys)
        if r.random() < 0.5:
            schema["additionalProperties"] = False
        sysm = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n" + json.dumps(schema)
        return dict(messages=[dict(role="system", content=sysm)] + turn(s, json.dumps(f, ensure_ascii=False)))
    if k < 0.75:
        sysm = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n" + json.dumps({"type": "json_object"})
        return dict(messages=[dict(role="system", content=sysm)] + turn(pick(r, f"Extract {join(keys)}: {s}", f"{s} Give me {join(keys)} as JSON."), json.dumps(f, ensure_ascii=False)))
    if k < 0.85:
        good = json.dumps(f, ensure_ascii=False)
        bad = pick(r, good[:-1], good.replace('"', "'"), good.replace(", ", " ", 1), good.replace('": ', '" ', 1), good[:-1] + ",}", good.replace('"', "", 2))
        return dict(messages=turn(pick(r, f"Repair this JSON: {bad}", f"Fix this JSON: {bad}", f"This JSON is broken. Correct it.\n{bad}"), good))
    x = r.choice(keys)
    v = f[x]
    return dict(messages=turn(pick(r, f"What is the value of \"{x}\" in {json.dumps(f)}?", f"Read \"{x}\" from this JSON: {json.dumps(f)}"), pick(r, json.dumps(v), f"The value of \"{x}\" is {json.dumps(v)}.")))


def _word(r):
    return "".join(r.choice("bcdfghklmnprstvw") + r.choice("aeiou") for _ in range(r.randint(1, 3))) + r.choice(("", "n", "r", "s", "t"))


TOOL_KINDS = (
    ("weather", ("get_weather", "weather", "fetch_weather", "current_weather"), "Get the weather for a city.",
     (("city", "string", "The city."), ("unit", "string", "celsius or fahrenheit")), 1,
     lambda r: dict(city=r.choice(CITIES), unit=r.choice(("celsius", "fahrenheit"))),
     ("What is the weather in {city}?", "How is the weather in {city} today?", "Weather in {city}, please.", "Is it raining in {city}?"),
     lambda r, a: json.dumps(dict(temperature=r.randint(-10, 35), sky=r.choice(("sunny", "cloudy", "rain", "snow", "fog")))),
     lambda r, a, o: f"In {a['city']} it is {json.loads(o)['temperature']} degrees, and the sky is described as \"{json.loads(o)['sky']}\"."),
    ("search", ("search", "web_search", "find_text", "lookup"), "Search for a text.", (("query", "string", "What to look for."), ("limit", "integer", "How many results.")), 1,
     lambda r: dict(query=r.choice((r.choice(ANIMALS)["plural"], r.choice(COUNTRIES)["name"], r.choice(OBJECTS)["name"], f"{r.choice(GIRLS)} {r.choice(SURNAMES)}")), limit=r.randint(1, 20)),
     ("Search for {query}.", "Look up {query}, please.", "Can you search for {query}?", "Find something about {query}."),
     lambda r, a: json.dumps(dict(results=[cap(a["query"]) + " in " + r.choice(CITIES), "All about " + a["query"]])), lambda r, a, o: "I found these results: " + " and ".join(f"\"{x}\"" for x in json.loads(o)["results"]) + "."),
    ("calc", ("calculate", "add_numbers", "calc", "sum"), "Add two numbers.", (("a", "integer", "First number."), ("b", "integer", "Second number.")), 2,
     lambda r: dict(a=r.randint(0, 9999), b=r.randint(0, 9999)), ("What is {a} + {b}?", "Add {a} and {b}.", "Please calculate {a} plus {b}."),
     lambda r, a: str(a["a"] + a["b"]), lambda r, a, o: f"{a['a']} + {a['b']} = {o}."),
    ("mail", ("send_mail", "send_email", "mail", "send_message"), "Send a message to a person.", (("to", "string", "Who gets it."), ("text", "string", "The message.")), 2,
     lambda r: dict(to=person(r, 0.4).name, text=r.choice(("I will be late.", "Happy birthday!", "The meeting is at noon.", "Please call me.", "Dinner is ready.", "See you tomorrow.", "Thank you for the book."))),
     ("Send {to} this message: {text}", "Write to {to}: {text}", "Tell {to}: {text}"), lambda r, a: json.dumps(dict(ok=True)), lambda r, a, o: f"I have sent the message to {a['to']}."),
    ("file", ("read_file", "open_file", "cat_file", "load"), "Read a file.", (("path", "string", "Path of the file."),), 1,
     lambda r: dict(path=r.choice(("", "src/", "docs/", "/tmp/", "/srv/" + r.choice(GIRLS).lower() + "/")) + _word(r) + r.choice((".txt", ".py", ".c", ".md", ".json", ".log"))),
     ("Read the file {path}.", "What is in {path}?", "Show me {path}.", "Open {path}, please."), lambda r, a: r.choice(("hello world", "empty", "key = value", "The end.", "line 1\nline 2")), lambda r, a, o: f"The file {a['path']} contains:\n\n{o}"),
    ("timer", ("set_timer", "start_timer", "timer", "remind"), "Start a timer.", (("minutes", "integer", "How long."), ("label", "string", "A name for it.")), 2,
     lambda r: dict(minutes=r.randint(1, 90), label=r.choice(("tea", "eggs", "bread", "homework", "meeting", "washing", "pasta"))), ("Set a timer of {minutes} minutes for {label}.", "Remind me in {minutes} minutes: {label}.", "{label}: {minutes} minutes, please."),
     lambda r, a: json.dumps(dict(ok=True, id=r.randint(1, 99))), lambda r, a, o: f"The timer for {a['label']} is set to {a['minutes']} minutes."),
    ("light", ("set_light", "switch_light", "light", "lamp_control"), "Switch a light on or off.", (("room", "string", "The room."), ("on", "boolean", "true to switch on")), 2,
     lambda r: dict(room=r.choice(("kitchen", "bedroom", "hall", "garden", "bathroom", "office")), on=r.random() < 0.5), ("Switch the light in the {room} {onoff}.", "Light {onoff} in the {room}, please.", "Turn {onoff} the {room} light."),
     lambda r, a: json.dumps(dict(ok=True)), lambda r, a, o: f"The light in the {a['room']} is {'on' if a['on'] else 'off'} now."),
    ("order", ("order_food", "add_to_cart", "buy", "order"), "Order something.", (("item", "string", "What to order."), ("count", "integer", "How many.")), 2,
     lambda r: dict(item=r.choice(FOODS)["name"], count=r.randint(1, 12)), ("Order {count} times {item}.", "I would like {count} portions of {item}.", "Please buy {item}, {count} of them."),
     lambda r, a: json.dumps(dict(ok=True, price=r.randint(2, 60))), lambda r, a, o: f"I have ordered {a['count']} times {a['item']}. The price is {json.loads(o)['price']}."),
    ("convert", ("convert_currency", "exchange", "convert"), "Convert money.", (("amount", "integer", "How much."), ("source", "string", "From which currency."), ("target", "string", "To which currency.")), 3,
     lambda r: dict(zip(("amount", "source", "target"), [r.randint(1, 5000)] + r.sample(("EUR", "USD", "GBP", "JPY", "CHF", "SEK", "INR"), 2))), ("Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?", "{amount} {source} in {target}, please."),
     lambda r, a: str(r.randint(1, 9000)), lambda r, a, o: f"{a['amount']} {a['source']} are {o} {a['target']}."),
    ("words", ("tag", "add_tags", "label_text"), "Store a list of words under a name.", (("name", "string", "The name."), ("words", "array", "The words.")), 2,
     lambda r: dict(name=_word(r), words=r.sample([o["name"] for o in OBJECTS], r.randint(1, 4))), ("Store {words_text} under the name {name}.", "Save the words {words_text} as {name}."),
     lambda r, a: json.dumps(dict(ok=True)), lambda r, a, o: f"I have stored the words under the name {a['name']}."),
)


VERBS = ("get", "set", "find", "create", "delete", "update", "list", "book", "cancel", "check", "open", "close", "start", "stop", "play", "print", "move", "copy", "rename", "count", "draw", "translate", "share", "rate", "save", "load", "pay", "rent", "plan", "measure")
NOUNS = ("flight", "room", "table", "song", "video", "ticket", "invoice", "note", "event", "task", "photo", "recipe", "route", "price", "contact", "report", "door", "window", "camera", "printer", "account", "order", "page", "user", "device", "taxi", "hotel", "car", "lesson", "parcel")


def _value(r, kind):
    """(JSON type, value) of a parameter"""
    k = kind or r.choice(("word", "name", "city", "number", "number", "flag", "phrase", "day", "list"))
    if k == "word":
        return "string", r.choice((_word(r), r.choice(OBJECTS)["name"], r.choice(COLOURS["colours"])["name"]))
    if k == "name":
        return "string", person(r, 0.5).name
    if k == "city":
        return "string", r.choice(CITIES)
    if k == "number":
        return "integer", r.randint(0, r.choice((10, 100, 1000, 9999)))
    if k == "flag":
        return "boolean", r.random() < 0.5
    if k == "day":
        return "string", r.choice(CALENDAR["weekdays"])["name"]
    if k == "list":
        return "array", [_word(r) for _ in range(r.randint(1, 3))]
    return "string", r.choice((chat.fact(r)[0], f"{r.choice(stories.LOOKS)} {r.choice(stories.THINGS)}", f"{person(r).name} {r.choice(SURNAMES)}"))


PARAMS = dict(origin="city", destination="city", city="city", place="city", person="name", name="name", user="name", title="phrase", text="phrase", label="word", colour="word", item="word", key="word", mode="word", count="number", seats="number", amount="number",
              size="number", width="number", height="number", page="number", minutes="number", hours="number", price="number", id="number", level="number", day="day", date="day", urgent="flag", loud="flag", public="flag", tags="list", words="list", speed="number",
              sender="name", receiver="name", language="word", file="word", code="word", message="phrase", query="phrase", limit="number", start="number", end="number", weight="number", age="number", owner="name", country="city", room="word", shape="word")


def _generic(r):
    """A tool with a drawn name and drawn parameters, and a request that states the values."""
    verb, noun = r.choice(VERBS), r.choice(NOUNS) if r.random() < 0.7 else _word(r)
    name = pick(r, f"{verb}_{noun}", f"{verb}{cap(noun)}", f"{noun}_{verb}", f"{verb}-{noun}", f"{noun}.{verb}", f"{verb}_{noun}_{_word(r)}", f"{_word(r)}::{verb}_{noun}")
    n = r.choice((0, 1, 1, 2, 2, 3, 3, 4))
    keys = r.sample(list(PARAMS), n)
    if r.random() < 0.2:
        keys = [k if r.random() < 0.5 else _word(r) for k in keys]
    keys = list(dict.fromkeys(keys))
    kinds = {k: PARAMS.get(k) or r.choice(("word", "number", "city", "name", "flag")) for k in keys}
    props = {}
    for k in keys:
        props[k] = dict(type=_value(r, kinds[k])[0])
        if props[k]["type"] == "array":
            props[k]["items"] = dict(type="string")
        if r.random() < 0.3:
            props[k]["description"] = f"The {k}."
    schema = dict(name=name, description=pick(r, f"{cap(verb)} {article(noun)}.", f"{cap(verb)}s {article(noun)}.", ""), parameters=dict(type="object", properties=props, required=keys))

    def show(v):
        return ("yes" if v else "no") if isinstance(v, bool) else join(v) if isinstance(v, list) else str(v)

    def ask(args):
        bits = [pick(r, f"{k} {show(v)}", f"{k}: {show(v)}", f"{k} = {show(v)}", f"{k} is {show(v)}") for k, v in args.items()]
        if {"origin", "destination"} <= set(args) and r.random() < 0.8:
            bits = [b for b, k in zip(bits, args) if k not in ("origin", "destination")]
            route = f" from {args['origin']} to {args['destination']}"
        else:
            route = ""
        head = pick(r, f"{cap(verb)} {article(noun)}{route}", f"Please {verb} {article(noun)}{route}", f"{cap(verb)} the {noun}{route}", f"Can you {verb} {article(noun)}{route}") if r.random() < 0.75 or route else pick(r, f"Use {name}", f"Call {name}")
        if "seats" in args and r.random() < 0.6:
            bits = [b for b in bits if not b.startswith("seats")]
            head += f" for {args['seats']} people"
        return head + ((pick(r, ", ", " with ", ": ", ". ") + pick(r, ", ", " and ", "; ").join(bits)) if bits else "") + "."

    return schema, lambda rr: {k: _value(rr, kinds[k])[1] for k in keys}, ask, keys, verb, noun


def _tool(r, kind):
    """A tool with drawn name and parameter set -> (schema, fill, questions, output, reply)"""
    _, names, desc, params, need, draw, asks, output, reply = kind
    name = r.choice(names)
    if r.random() < 0.3:
        name = pick(r, f"{_word(r)}_{name}", f"{name}_{_word(r)}", f"{name}{r.randint(2, 9)}", cap(name))
    keep = list(params) if r.random() < 0.4 or need == len(params) else list(params)[:need]
    props = {}
    for k, t, d in keep:
        props[k] = dict(type=t)
        if t == "array":
            props[k]["items"] = dict(type="string")
        if r.random() < 0.5:
            props[k]["description"] = d
    schema = dict(name=name, description=desc, parameters=dict(type="object", properties=props, required=[k for k, _, _ in keep[:need]]))
    return schema, draw, asks, output, reply, [k for k, _, _ in keep[:need]]


def tools(r):
    if r.random() < 0.6:
        return generic_tools(r)
    kinds = r.sample(TOOL_KINDS, r.choice((1, 1, 2, 2, 3)))
    made = [_tool(r, k) for k in kinds]
    conv = dict(tools=[m[0] for m in made])
    thinking = r.random() < 0.35
    if thinking:
        conv.update(thinking=True, effort=r.choice((50, 75, 75, 100)))
    msgs = []
    if r.random() < 0.35:
        msgs.append(dict(role="system", content=pick(r, "You are a helpful assistant.", "Use the tools when they are needed.", "You are an assistant with tools.")))

    def say(content, reason, **kw):
        m = dict(role="assistant", content=content, **kw)
        if thinking:
            m["reasoning"] = reason
        msgs.append(m)

    for _ in range(r.choice((1, 1, 2))):
        k = r.random()
        if k < 0.2:
            q, a = chat.fact(r) if r.random() < 0.6 else (lambda c: (c[0]["content"], c[1]["content"]))(r.choice((chat.greeting, chat.identity, chat.smalltalk))(r))
            msgs.append(dict(role="user", content=loosen(r, q)))
            say(a, pick(r, "No tool is needed for this.", "I can answer this without a tool."))
            continue
        schema, draw, asks, output, reply, need = r.choice(made)
        n = 1 if k < 0.8 else 2
        args, calls, texts = [], [], []
        for _ in range(n):
            full = draw(r)
            ask = r.choice(asks).format(**full, onoff="on" if full.get("on") else "off", words_text=join(full["words"]) if "words" in full else "")
            texts.append(ask)
            args.append(full)
            calls.append(dict(name=schema["name"], arguments={x: full[x] for x in need}))
        q = texts[0] if n == 1 else texts[0].rstrip(".?!") + pick(r, ". And: ", ". Then: ", ". Also: ") + texts[1]
        msgs.append(dict(role="user", content=q))
        say("" if r.random() < 0.7 else pick(r, "I will look that up.", "One moment, please.", "Let me do that."), pick(r, f"I need the tool {schema['name']} for this.", f"The tool {schema['name']} fits. I call it.", f"I will call {schema['name']}" + (" twice." if n == 2 else ".")), calls=calls)
        outs = [output(r, a) for a in args]
        fail = r.random() < 0.1
        if fail:
            outs = [pick(r, '{"error": "not found"}', "Error: timeout", '{"error": "no connection"}')] * n
        msgs += [dict(role="tool", content=o) for o in outs]
        if fail:
            say(pick(r, "I am sorry, the tool did not work. Please try again later.", "I am sorry, that failed. Shall I try again?"), "The tool returned an error. I tell the user.")
        else:
            say(" ".join(reply(r, a, o) for a, o in zip(args, outs)), pick(r, "The result is here. I tell the user.", "Now I can answer."))
    conv["messages"] = msgs
    return conv


def generic_tools(r):
    """Tools that were never seen before: names, keys and values have to be copied from the schema and the request."""
    made = [_generic(r) for _ in range(r.choice((1, 1, 2, 2, 3)))]
    conv = dict(tools=[m[0] for m in made])
    if r.random() < 0.3:
        conv.update(thinking=True, effort=r.choice((50, 75, 75, 100)))
    thinking = conv.get("thinking")
    msgs = [dict(role="system", content="You are a helpful assistant.")] if r.random() < 0.3 else []
    schema, draw, ask, keys, verb, noun = r.choice(made)
    args = draw(r)
    msgs.append(dict(role="user", content=ask(args)))
    m = dict(role="assistant", content="" if r.random() < 0.8 else "One moment, please.", calls=[dict(name=schema["name"], arguments=args)])
    if thinking:
        m["reasoning"] = pick(r, f"I need the tool {schema['name']} for this.", f"The tool {schema['name']} fits. I call it.", f"I will call {schema['name']}" + (f" with {join(keys)}." if keys else "."))
    msgs.append(m)
    if r.random() < 0.5:
        ok = r.random() < 0.85
        value = r.randint(1, 9999)
        msgs.append(dict(role="tool", content=pick(r, '{"ok": true}', '{"status": "done"}', "done", "OK", f'{{"id": {value}}}', f'{{"result": {value}}}') if ok else pick(r, '{"error": "not found"}', "Error: timeout", '{"ok": false}')))
        last = msgs[-1]["content"]
        text = pick(r, "I am sorry, that did not work.", "I am sorry, the tool returned an error.") if not ok else f"Done. The id is {value}." if '"id"' in last else f"The result is {value}." if '"result"' in last else pick(r, "Done.", f"Done. {cap(noun)}: {verb}.", "It is done.")
        m = dict(role="assistant", content=text)
        if thinking:
            m["reasoning"] = "The result is here. I tell the user."
        msgs.append(m)
    conv["messages"] = msgs
    return conv


def needle(r):
    """(kind, value) of a fact that nothing else tells"""
    code = r.randint(100, 999) if r.random() < 0.5 else r.randint(10, 99999)
    return r.choice((("secret number", str(code)), ("password", _word(r) + str(r.randint(10, 99))), ("name of the ship", cap(_word(r))), ("colour of the door", r.choice(COLOURS["colours"])["name"]), ("name of the town", cap(_word(r)))))


def filler(r):
    return r.choice((lambda: prose.scene(r), lambda: stories.story(r, short=True)[0], lambda: prose.about(r)[1]))()


def recall(r):
    """A fact inside filler text, asked at the end."""
    what = needle(r)
    fact = f"The {what[0]} is {what[1]}."
    parts = [filler(r) for _ in range(r.randint(1, 7))]
    parts.insert(r.randint(0, len(parts)), fact)
    q = pick(r, f"What is the {what[0]}?", f"Tell me the {what[0]}.", f"Which {what[0].split()[-1] if ' of ' not in what[0] else what[0]} was mentioned?")
    text = "\n\n".join(parts)
    u = f"{text}\n\n{q}" if r.random() < 0.6 else f"Read this text and answer the question.\n\n{text}\n\nQuestion: {q}"
    return dict(messages=turn(u, pick(r, fact, fact, f"It is {what[1]}.")))


def long(r, limit):
    """Recall over 1,000 to `limit` tokens: one to five facts in a long text, asked one after the other, the first together with the text;
    or facts told at the beginning of a long talk."""
    size = 4.2 * 0.93 * 1000 * (limit / 1000) ** r.random()         # characters, logarithm uniform
    facts = list(dict([needle(r) for _ in range(r.choice((1, 2, 3, 4, 5)))]).items())
    told = [f"The {k} is {v}." for k, v in facts]
    asked = [(pick(r, f"What is the {k}?", f"What is the {k}?", f"Tell me the {k}."), pick(r, f"The {k} is {v}.", f"The {k} is {v}.", f"It is {v}.")) for k, v in facts]
    r.shuffle(asked)
    if r.random() < 0.25:
        msgs = turn(" ".join(told), pick(r, "I will remember that.", "Good, I have noted it."))
        while sum(len(m["content"]) for m in msgs) < size:
            part = r.choice((chat.conversation, chat.conversation, reading, copying))(r)
            if not part.get("tools") and not part.get("thinking") and all(m["role"] in ("user", "assistant") for m in part["messages"]):
                msgs += part["messages"]
    else:
        parts = []
        while sum(map(len, parts)) < size:
            parts.append(filler(r))
        for t in told:
            parts.insert(r.randint(0, len(parts)), t)
        q, a = asked.pop(0)
        msgs = turn("\n\n".join(parts) + "\n\n" + q, a)
    for q, a in asked:
        msgs += turn(q, a)
    return dict(messages=msgs)


def reading(r):
    """A short text and a question about it."""
    k = r.random()
    if k < 0.5:
        t, f = stories.story(r, short=True)
        q, a = r.choice(((f"Who was {f['friend']}?", f"{f['friend']} was the friend of {f['hero']}."), ("What is the name of the main character?", f"The main character is {f['hero']}."), ("Give the story a title.", stories.title(r, f)),
                         ("What is the moral?", f["moral"])))
        return dict(messages=turn(f"{t}\n\n{q}", a))
    f, s = record(r)
    x = r.choice(list(f))
    v = f[x]
    v = ("yes" if v else "no") if isinstance(v, bool) else str(v)
    return dict(messages=turn(pick(r, f"{s} What is the {x}?", f"Text: {s}\nQuestion: What is the {x}?"), pick(r, f"The {x} is {v}.", cap(v) + ".")))


def copying(r):
    k = r.random()
    if k < 0.4:
        s = r.choice((prose.scene(r), prose.about(r)[1], " ".join(_word(r) for _ in range(r.randint(2, 8))), chat.fact(r)[0]))
        return dict(messages=turn(pick(r, f"Repeat after me: {s}", f"Say this: {s}", f"Repeat this text: {s}", f"Copy: {s}"), s))
    if k < 0.6:
        s = r.choice((chat.fact(r)[1], prose.scene(r)))
        return dict(messages=turn(pick(r, f"Write this in capital letters: {s}", f"Convert to upper case: {s}"), s.upper()))
    if k < 0.8:
        xs = [_word(r) for _ in range(r.randint(2, 6))]
        return dict(messages=turn(f"Reverse this list: {', '.join(xs)}", ", ".join(reversed(xs))))
    w = _word(r)
    n = r.randint(2, 6)
    return dict(messages=turn(f"Write the word \"{w}\" {number_word(n)} times.", " ".join([w] * n)))


CODE = (
    ("a function that adds two numbers", "def add(a, b):\n    return a + b"), ("a function that returns the square of a number", "def square(x):\n    return x * x"),
    ("a function that reverses a string", "def reverse(s):\n    return s[::-1]"), ("a function that returns the largest number of a list", "def largest(xs):\n    best = xs[0]\n    for x in xs:\n        if x > best:\n            best = x\n    return best"),
    ("a loop that prints the numbers from 1 to {n}", "for i in range(1, {n1}):\n    print(i)"), ("a program that prints \"{w}\"", "print(\"{w}\")"), ("a function that tests whether a number is even", "def is_even(n):\n    return n % 2 == 0"),
    ("a function that computes the factorial", "def factorial(n):\n    result = 1\n    for i in range(2, n + 1):\n        result *= i\n    return result"), ("a function that counts the words of a text", "def count_words(text):\n    return len(text.split())"),
    ("a function that sums a list", "def total(xs):\n    s = 0\n    for x in xs:\n        s += x\n    return s"), ("a function that greets a person", "def greet(name):\n    return \"Hello, \" + name + \"!\""),
    ("a list of the numbers from 1 to {n}", "numbers = list(range(1, {n1}))"), ("a function that reads a file", "def read(path):\n    with open(path) as f:\n        return f.read()"),
    ("a function that computes Fibonacci numbers", "def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a"), ("a function that tests whether a word is a palindrome", "def is_palindrome(s):\n    return s == s[::-1]"),
)


def code(r):
    q, a = r.choice(CODE)
    n, w = r.randint(3, 100), r.choice(("Hello", "Hello, world!", _word(r), "Good morning"))
    q, a = q.replace("{n}", str(n)).replace("{w}", w), a.replace("{n1}", str(n + 1)).replace("{w}", w)
    return dict(messages=turn(loosen(r, pick(r, f"Write {q} in Python.", f"Python: {q}", f"Show me {q} in Python.", f"How do I write {q} in Python?")), pick(r, f"```python\n{a}\n```", f"```python\n{a}\n```", f"Here it is:\n\n```python\n{a}\n```")))


MIX = ((compute, 60), (extract, 20), (tools, 26), (recall, 8), (reading, 8), (copying, 7), (shell, 13), (code, 4))


def conversation(r):
    fns, weights = zip(*MIX)
    return r.choices(fns, weights)[0](r)
