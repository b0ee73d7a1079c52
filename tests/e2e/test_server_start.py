"""What `deepserve serve` refuses at its start: one line that names the option or file, the value and the rule."""
import pytest

from server_lib import make_model


@pytest.fixture(scope="module")
def model(program, root, tmp_path_factory):
    return make_model(program, root, tmp_path_factory.mktemp("start") / "model")


@pytest.fixture
def refused(deepserve, model):
    def check(status, *words, args):
        done = deepserve("serve", "--model", model, "--port", 0, *args)
        lines = [line for line in done.stderr.decode().splitlines() if not line.endswith("shows what is possible")]
        assert done.returncode == status and done.stdout == b"" and len(lines) == 1, (args, done)
        for word in words:
            assert str(word) in lines[0], (word, lines)

    return check


def test_values(refused, tmp_path):
    for args, words in [
        (("--speculate", "65"), ("--speculate '65'", "up to 64")),
        (("--speculate", "fast"), ("--speculate 'fast'", "auto")),
        (("--otlp", "ftp://x"), ("--otlp 'ftp://x'", "http://")),
        (("--otlp", "collector:4318"), ("--otlp 'collector:4318'", "http://")),
        (("--metrics-prefix", "a b{"), ("--metrics-prefix 'a b{'", "letters")),
        (("--metrics-prefix", "1a"), ("--metrics-prefix '1a'", "digit")),
        (("--cors-origin", "https://a\r\nSet-Cookie: b"), ("--cors-origin 'https://a\\r\\nSet-Cookie: b'", "origin")),
        (("--cors-origin", "https://a, https://b"), ("--cors-origin", "one origin")),
        (("--cors-origin", ""), ("--cors-origin ''", "origin")),
        (("--served-model-name", ""), ("--served-model-name ''", "name")),
        (("--unix-socket", ""), ("--unix-socket ''",)),
        (("--api-keys", ""), ("--api-keys ''",)),
        (("--host", ""), ("--host ''",)),
        (("--unix-socket", tmp_path / "s", "--admin-socket", tmp_path / "s"), ("--admin-socket", "different")),
        (("--set", "nope=1"), ("--set: ", "'nope'")),
        (("--max-head", "1000"), ("--max-head '1000'", "1KiB..1MiB")),
        (("--idle-timeout", "10ms"), ("--idle-timeout '10ms'", "1s..24h")),
    ]:
        refused(2, *words, args=args)
    assert not (tmp_path / "s").exists()
