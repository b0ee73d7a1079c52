"""What the package raises."""
import json

NAMES = {-1: "nomem", -2: "arg", -3: "format", -4: "io", -5: "again", -6: "canceled", -7: "device"}


class Error(Exception):
    """A function of the library failed. `code` is nomem, arg (the caller's mistake), format (outside bytes are malformed), io, again, canceled or
    device."""

    def __init__(self, rc, message):
        super().__init__(message)
        self.code = NAMES.get(rc, str(rc))


class ApiError(Error):
    """A request was refused. `body` is the protocol's error body, JSON as text; `status` the HTTP status that goes with it."""

    def __init__(self, status, type, code, param, message, body):
        super().__init__(-3, message)
        self.status, self.type, self.error_code, self.param, self.message, self.body = status, type, code, param, message, body

    def json(self):
        return json.loads(self.body)
