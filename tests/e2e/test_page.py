"""The web page in headless Chromium, against a server with scripted answers."""
import json
import re
import urllib.parse

import pytest

from page_lib import Browser, ROOT, Stub, embed
from server_lib import Server, make_model, wait

ENTER, ESCAPE, TAB, SHIFT, RIGHT = "\ue007", "\ue00c", "\ue004", "\ue008", "\ue014"


@pytest.fixture
def stub():
    s = Stub()
    yield s
    s.shutdown()
    s.server_close()


@pytest.fixture(scope="module")
def chromium():
    b = Browser(pytest.skip)
    yield b
    b.close()


@pytest.fixture
def browser(chromium, stub):
    chromium.size(1180, 820)
    chromium.open(stub.url + "/")
    chromium.until("document.querySelector('#model').options.length == 2")
    chromium.log("performance"), chromium.log("browser")
    yield chromium
    wrong = [entry["message"] for entry in chromium.log("browser") if entry["level"] == "SEVERE" and "429" not in entry["message"]]
    assert not wrong  # neither script errors nor anything that the policy had to stop


def ask(browser, text):
    before = browser.js("return document.querySelectorAll('article.assistant').length")
    browser.type("#prompt", text + ENTER)
    browser.until(f"document.querySelectorAll('article.assistant').length > {before} && document.querySelector('#stop').hidden")


def test_answer_is_streamed_and_rendered(browser, stub):
    browser.type("#prompt", "hello")
    browser.press(ENTER)
    browser.until("document.querySelector('.facts')")
    text = browser.js("return document.querySelector('.md').innerText")
    for part in ("Here is what you asked for", "Steps", "nested item", "12 µs", "<b>no markup</b>", "<script>alert(1)</script>", "[a bad link](javascript:alert(1))"):
        assert part in text
    assert browser.js("return [...document.querySelectorAll('.md strong, .md em, .md td, .md h4, .md ol ul li')].length") == 6
    assert browser.js("return [...document.querySelectorAll('.md a')].map(a => a.protocol + a.rel)") == ["https:noopener noreferrer"] * 2
    assert browser.js("return document.querySelectorAll('.md img, .md script, .md b').length") == 0
    thought = browser.js("const t = document.querySelector('details.think'); const was = t.open; t.open = true; return [was, t.innerText]")
    assert not thought[0] and "The user wants to know something – let me see." in thought[1]
    assert "57 tokens" in browser.js("return document.querySelector('.facts').innerText")
    assert "Answer complete" in browser.js("return document.querySelector('#announce').textContent")
    sent = stub.chats()[0]
    assert sent["messages"] == [{"role": "user", "content": "hello"}] and sent["model"] == "demo" and sent["stream"] is True and sent["key"] is None
    assert "temperature" not in sent and "max_tokens" not in sent and "thinking" not in sent


def test_tables_tasks_and_formulas(browser, stub):
    ask(browser, "hello")
    assert browser.js("return [...document.querySelectorAll('.md th, .md td')].map(c => c.style.textAlign)") == ["left", "right"] * 2
    assert browser.js("return [...document.querySelectorAll('.md li.task input')].map(c => [c.checked, c.disabled, c.getAttribute('aria-label')])") == [[True, True, "done"], [False, True, "to do"]]
    assert browser.js("return [...document.querySelectorAll('.md .tex')].map(c => c.textContent)") == ["x12 ≤ (a+b)/2", "α", "E = mc2"]
    assert browser.js("return [...document.querySelectorAll('.md .tex sup, .md .tex sub')].map(c => c.tagName + c.textContent)") == ["SUB1", "SUP2", "SUP2"]
    assert "It costs $5 and $6" in browser.js("return document.querySelector('.md').innerText")


@pytest.mark.parametrize("text, shown", [("word $a$b$ and \\\\frac{1}{2", ["a"]), ("$$\\\\left( \\\\frac{1}{x^{n+1}} \\\\right)$$", ["( 1/(xn+1) )"]), ("\\\\(\\\\unknown{x} \\\\sqrt[3]{ab}\\\\)", ["\\unknownx 3√(ab)"]),
                                         ("$" * 300, None), ("\\\\(" * 200 + "{" * 200 + "\\\\)", None)])
def test_formulas_of_any_kind(browser, stub, text, shown):
    stub.answer = text.replace("\\\\", "\\")
    ask(browser, "hello")
    got = browser.js("return [...document.querySelectorAll('.md .tex')].map(c => c.textContent)")
    assert shown is None or got == shown


def test_a_rate_is_shown_only_when_it_was_measured(browser, stub):
    ask(browser, "hello")
    assert "a second" in browser.js("return document.querySelector('.facts').innerText")
    stub.answer = "All at once."
    ask(browser, "again")
    facts = browser.js("return [...document.querySelectorAll('.facts')].at(-1).innerText")
    assert "57 tokens" in facts and "a second" not in facts


def test_a_reload_keeps_the_conversation(browser, stub):
    ask(browser, "hello")
    ask(browser, "refuse")
    shown = browser.js("return document.querySelector('#messages').innerText")
    browser.open(stub.url + "/")
    browser.until("document.querySelectorAll('article').length == 4")
    assert browser.js("return document.querySelector('#messages').innerText") == shown
    ask(browser, "and on")
    assert [m["content"] for m in stub.chats()[-1]["messages"] if m["role"] == "user"] == ["hello", "refuse", "and on"]
    assert "hello" not in browser.js("return JSON.stringify(localStorage)")
    browser.click("#clear")
    browser.open(stub.url + "/")
    browser.until("document.querySelector('#model').options.length == 2")
    assert browser.js("return document.querySelectorAll('article').length") == 0


def test_an_answer_that_a_reload_ends_says_so(browser, stub):
    browser.type("#prompt", "long" + ENTER)
    browser.until("document.querySelector('.md').innerText.includes('word9')")
    browser.open(stub.url + "/")
    browser.until("document.querySelector('article.assistant .note')")
    assert browser.js("return document.querySelector('article.assistant .note').innerText") == "Stopped."
    assert browser.js("return document.querySelector('.md').innerText").startswith("word0 word1")
    assert stub.aborted.wait(60)


def test_an_error_comes_into_view(browser, stub):
    for _ in range(3):
        ask(browser, "hello")
    browser.type("#prompt", "refuse late" + ENTER)
    browser.js("document.querySelector('#log').scrollTop = 0")
    browser.until("document.querySelector('.error:not([hidden])')")
    browser.until("(() => { const e = document.querySelector('.error:not([hidden])').getBoundingClientRect(), l = document.querySelector('#log').getBoundingClientRect(); return e.top >= l.top - 1 && e.bottom <= l.bottom + 1; })()", seconds=10)


def test_nothing_leaves_the_server(browser, stub):
    ask(browser, "hello")
    browser.click("#tab-engine")
    browser.until("document.querySelector('#cards svg')")
    hosts = set()
    for entry in browser.log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = urllib.parse.urlsplit(message["params"]["request"]["url"])
            if url.scheme not in ("data", "blob"):
                hosts.add(f"{url.scheme}://{url.netloc}")
    assert hosts == {stub.url}
    browser.click("#tab-chat")


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop(browser, stub, how):
    browser.type("#prompt", "long" + ENTER)
    browser.until("document.querySelector('.md').innerText.includes('word9')")
    if how == "button":
        browser.click("#stop")
    else:
        browser.press(ESCAPE)
    browser.until("document.querySelector('article.assistant .note').innerText == 'Stopped.'")
    assert stub.aborted.wait(60)
    assert browser.js("return document.querySelector('.md').innerText").startswith("word0 word1 word2")
    assert browser.js("return document.activeElement.id") == "prompt"
    ask(browser, "hello")  # and it goes on
    assert [m["role"] for m in stub.chats()[1]["messages"]] == ["user", "assistant", "user"]


def test_settings_reach_the_request_and_the_key_stays_in_the_tab(browser, stub):
    browser.click("#settings-button")
    browser.type("#system", "Be brief.")
    browser.type("#temperature", "0.5")
    browser.type("#max-tokens", "64")
    browser.type("#thinking", "maximum")
    browser.type("#key", "sk-secret\t")
    browser.js("const m = document.querySelector('#model'); m.value = 'other'; m.dispatchEvent(new Event('change'))")
    ask(browser, "hello")
    sent = stub.chats()[0]
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (sent["temperature"], sent["max_tokens"], sent["model"], sent["key"]) == (0.5, 64, "other", "Bearer sk-secret")
    assert sent["thinking"] == {"type": "enabled"} and sent["reasoning_effort"] == "max"
    assert "sk-secret" not in browser.js("return JSON.stringify(localStorage) + document.cookie")
    assert "sk-secret" in browser.js("return JSON.stringify(sessionStorage)")
    browser.type("#thinking", "off")
    ask(browser, "again")
    assert stub.chats()[1]["thinking"] == {"type": "disabled"} and "reasoning_effort" not in stub.chats()[1]
    browser.js("localStorage.clear(); sessionStorage.clear()")


def test_tool_call_and_result(browser, stub):
    browser.click("#settings-button")
    browser.type("#tools", '[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object"}}}]\t')
    browser.click("#settings-button")
    ask(browser, "tool")
    assert "get_weather" in browser.js("return document.querySelector('details.call summary').innerText")
    assert json.loads(browser.js("return document.querySelector('details.call code').textContent")) == {"city": "Köln", "days": 3}
    assert "null" not in browser.js("return document.querySelector('article.assistant').innerText")
    browser.type("details.call textarea", "9 degrees")
    browser.click("details.call .main-button")
    browser.until("document.querySelectorAll('article.assistant').length == 2 && document.querySelector('#stop').hidden")
    sent = stub.chats()[1]
    assert sent["tools"][0]["function"]["name"] == "get_weather"
    call, result = sent["messages"][1:]
    assert call["tool_calls"] == [{"id": "call_r_0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Köln", "days": 3}'}}]
    assert result == {"role": "tool", "tool_call_id": "call_r_0", "content": "9 degrees"}
    ask(browser, "tool")  # a call that gets no result is answered all the same
    ask(browser, "hello")
    assert [m["role"] for m in stub.chats()[3]["messages"]] == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "user"]
    browser.js("localStorage.clear()")


def test_wrong_tools_are_said(browser, stub):
    browser.click("#settings-button")
    browser.type("#tools", "{\t")
    browser.type("#prompt", "hello" + ENTER)
    browser.until("document.querySelector('.error').innerText.includes('tools')")
    assert not stub.chats()
    browser.js("localStorage.clear()")


def test_edit_regenerate_copy_and_new(browser, stub):
    ask(browser, "hello")
    browser.click("article.assistant .tools-row button")
    browser.until("document.querySelectorAll('.facts').length == 1 && document.querySelector('#stop').hidden")
    assert [len(c["messages"]) for c in stub.chats()] == [1, 1]
    browser.click("article.user .tools-row button")
    browser.press(ESCAPE)
    assert browser.js("return document.querySelector('article.user .text').innerText") == "hello"
    browser.click("article.user .tools-row button")
    browser.press("!", ENTER)
    browser.until("document.querySelector('.facts')")
    assert stub.chats()[2]["messages"] == [{"role": "user", "content": "hello!"}]
    browser.js("document.execCommand = () => { window.copied = document.activeElement.value; return true; }; navigator.clipboard.writeText = async t => { window.copied = t; }")
    browser.click(".code .bar button")
    browser.until("(window.copied || '').startsWith('int main(void)')")
    browser.click("#clear")
    assert browser.js("return document.querySelectorAll('article').length") == 0


def test_errors_are_shown(browser, stub):
    ask(browser, "refuse")
    assert "429: The queue is full." in browser.js("return document.querySelector('.error').innerText")
    ask(browser, "cut")
    assert "ended early" in browser.js("return [...document.querySelectorAll('.error')].pop().innerText")
    assert "half an ans" in browser.js("return [...document.querySelectorAll('.md')].pop().innerText")


def test_keyboard(browser, stub):
    browser.js("document.activeElement.blur(); document.querySelector('#tab-chat').focus()")
    order = []
    for _ in range(5):
        browser.press(TAB)
        order.append(browser.js("return document.activeElement.id"))
    assert order == ["model", "settings-button", "log", "prompt", "clear"]  # Send takes part once there is something to send
    browser.js("document.querySelector('#prompt').focus()")
    browser.call("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": [
        {"type": "keyDown", "value": "a"}, {"type": "keyUp", "value": "a"}, {"type": "keyDown", "value": SHIFT}, {"type": "keyDown", "value": ENTER},
        {"type": "keyUp", "value": ENTER}, {"type": "keyUp", "value": SHIFT}, {"type": "keyDown", "value": "b"}, {"type": "keyUp", "value": "b"}]}]})
    assert browser.js("return document.querySelector('#prompt').value") == "a\nb" and not stub.chats()
    browser.js("document.querySelector('#tab-chat').focus()")
    browser.press(RIGHT)
    assert browser.js("return [document.activeElement.id, document.querySelector('#engine').hidden]") == ["tab-engine", False]
    browser.click("#tab-chat")
    browser.click("#settings-button")
    browser.press(ESCAPE)
    assert browser.js("return [document.querySelector('#settings').hidden, document.activeElement.id]") == [True, "settings-button"]


def test_every_control_has_a_name(browser):
    nameless = browser.js("""return [...document.querySelectorAll('button, input, select, textarea')]
        .filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length))).map(e => e.outerHTML)""")
    assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_width(browser, scheme):
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.size(360, 740)
    ask(browser, "tool")
    ask(browser, "hello")
    wide = "return [document.documentElement.scrollWidth, document.querySelector('#log').scrollWidth - document.querySelector('#log').clientWidth]"
    assert browser.js(wide) == [360, 0]
    browser.click("#settings-button")
    assert browser.js(wide) == [360, 0]
    browser.click("#tab-engine")
    browser.until("document.querySelectorAll('#cards svg').length >= 6")
    assert browser.js("const e = document.querySelector('#engine'); return [document.documentElement.scrollWidth, e.scrollWidth - e.clientWidth]") == [360, 0]
    contrast = browser.js("const s = getComputedStyle(document.body); return s.color + s.backgroundColor")
    r = [int(x) for x in re.findall(r"\d+", contrast)]
    assert (r[0] > r[3]) == (scheme == "dark")
    browser.devtools("Emulation.setEmulatedMedia", features=[])


def cards(browser):
    return browser.js("return Object.fromEntries([...document.querySelectorAll('.card')].map(c => [c.getAttribute('aria-label'), c.innerText]))")


def test_engine_view(browser):
    browser.click("#tab-engine")
    browser.until("document.querySelector('[aria-label=\"Step time\"] svg') && document.querySelector('[aria-label=\"Tokens a second\"] svg')")

    def rates():  # between two looks, so that one answer that comes late makes two of them wrong
        seen = cards(browser)
        generated = float(re.search(r"([\d,.]+)\s*generated", seen["Tokens a second"]).group(1).replace(",", ""))
        return 200 < generated < 800 and re.search(r"[4-9]\d(\.\d)? %\s*device busy", seen["Where the time goes"]) and seen  # 412; 71 %

    seen = wait(rates)
    assert seen and "idle" not in seen["Where the time goes"]
    assert re.search(r"\d\s*running", seen["Requests"])
    assert "60.9 %" in seen["Prompt tokens from the cache"]
    assert re.search(r"9[0-9](\.\d)? ms\s*median", seen["Time to first token"])
    assert "31 ms" in seen["Step time"] and "11.2 ms" in seen["Step time"]
    assert re.search(r"draft 1\s*8[56](\.\d)? %", seen["Drafts accepted, by position"])
    assert re.search(r"kv\s*2 GiB", seen["Memory plan"]) and re.search(r"other\s*252 MiB", seen["Memory plan"])
    assert re.search(r"refused: queue full\s*3", seen["Finished and refused"]) and "length" not in seen["Finished and refused"]
    assert re.search(r"after the end\s*250", seen["Tokens computed in vain"])


@pytest.mark.parametrize("text", ["", "num_requests_running 2\n", "x{a=\"}\\\"{\"} NaN\nfoo_num_requests_running 2\nfoo_time_to_first_token_seconds_bucket{le=\"+Inf\"} 3\n", "<html>"])
def test_engine_view_without_metrics(stub, chromium, text):
    stub.metrics_text = lambda look: text
    chromium.size(1180, 820)
    chromium.open(stub.url + "/#engine")
    chromium.until("document.querySelectorAll('.card p.none').length >= 8")
    seen = cards(chromium)
    assert "doesn't report" in seen["Time between tokens"] and "doesn't report" in seen["Memory plan"]
    if "running" in text:
        assert "2" in seen["Requests"]
    assert not [e for e in chromium.log("browser") if e["level"] == "SEVERE"]


def test_embedding():
    html = (ROOT / "web" / "index.html").read_text(encoding="utf-8")
    assert "unsafe" not in embed.policy(html) and embed.policy(html).count("sha256-") == 2
    assert eval("b" + "b".join(line.strip() for line in embed.literal('a"\\\n\x01é?').split("\n")).replace("b\"", " b\"").strip().lstrip("b")) == 'a"\\\n\x01é?'.encode()
    for wrong in ('<p style="x">', '<p onclick="x">', '<img src="x.png">', '<script src="x"></script>'):
        with pytest.raises(SystemExit):
            embed.policy(html.replace("<main>", "<main>" + wrong))


@pytest.fixture(scope="module")
def model(program, tmp_path_factory):
    return make_model(program, ROOT, tmp_path_factory.mktemp("page") / "m")


def card(name):
    return f"document.querySelector('[aria-label=\"{name}\"]')"


def test_on_the_real_server(chromium, program, model):
    """A random model: it may end at any token, the first one too. What it has not measured yet is told from what a server doesn't measure."""
    with Server(program, model, "--served-model-name", "tiny") as server:
        chromium.size(1180, 820)
        chromium.open(server.url + "/")
        chromium.until("document.querySelector('#model').value == 'tiny'")
        chromium.log("browser")
        chromium.click("#settings-button")
        chromium.type("#max-tokens", "24\t")
        ask(chromium, "Hello")
        chromium.until("/tokens/.test(document.querySelector('.facts').innerText) && document.querySelector('.error').hidden")
        chromium.click("#tab-engine")
        chromium.until(f"/length|stop|tool calls/.test({card('Finished and refused')}.innerText)")
        seen = cards(chromium)
        assert not [name for name, text in seen.items() if "doesn't report" in text]
        assert "kv" in seen["Memory plan"]
        assert not [e for e in chromium.log("browser") if e["level"] == "SEVERE"]
        chromium.js("localStorage.clear()")


def test_numbers_of_the_real_server(chromium, program, model, tmp_path):
    """The engine with a recorded answer, longer than what is asked for: one request reaches its limit, one is stopped in the middle."""
    with Server(program, model, "--served-model-name", "tiny", replay=[{"text": "word " * 2000, "repeat": True}], folder=tmp_path, step=20000) as server:
        chromium.size(1180, 820)
        chromium.open(server.url + "/#engine")
        chromium.until("document.querySelector('#model').value == 'tiny' && document.querySelectorAll('.card p.none').length >= 5")
        assert "Nothing yet." in cards(chromium)["Time between tokens"]
        chromium.click("#tab-chat")
        chromium.click("#settings-button")
        chromium.type("#max-tokens", "24\t")
        ask(chromium, "Hello")
        chromium.type("#max-tokens", "00\t")
        chromium.type("#prompt", "Go on" + ENTER)
        chromium.until("document.querySelectorAll('article.assistant').length == 2 && /word/.test([...document.querySelectorAll('article.assistant')][1].textContent)")
        chromium.press(ESCAPE)
        chromium.until("document.querySelector('#stop').hidden")
        chromium.click("#tab-engine")
        for name in ("Tokens a second", "Time to first token", "Time between tokens", "Step time"):
            chromium.until(card(name) + ".querySelector('svg')")
        chromium.until(f"/length\\s*1/.test({card('Finished and refused')}.innerText) && /abort\\s*1/.test({card('Finished and refused')}.innerText)")
        chromium.js("localStorage.clear()")
