"""Answers the pairs of a run over HTTP, as any program can: this one prefers the clip with more movement.

python examples/label_over_http.py 'http://127.0.0.1:8765/#t=...'
"""

from __future__ import annotations

import io
import json
import sys
import time
import urllib.request
import uuid
from typing import Any

import numpy as np
from PIL import Image


class LabelClient:
    """A logged-in labeller; replies other than 200 raise urllib.error.HTTPError, whose body has the reason."""

    def __init__(self, link: str, labeller: str) -> None:
        self.address, _, token = link.partition("/#t=")
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self.call("/api/login", {"token": token, "labeller": labeller})  # sets the cookie

    def open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Sends a GET request, or a POST request if there is a body, and returns the response."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json", "Origin": self.address}
        return self._opener.open(urllib.request.Request(self.address + path, data, headers))

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Sends a request as `open` does, and returns the response's JSON."""
        with self.open(path, body) as response:
            return json.load(response)

    def clip(self, segment_id: str) -> np.ndarray:
        """Returns the frames of a clip, (T, H, W, 3) uint8."""
        with self.open(f"/api/clip/{segment_id}") as response:
            sheet = np.asarray(Image.open(io.BytesIO(response.read())).convert("RGB"))
            n, columns, width, height = (
                int(response.headers[f"X-{name}"]) for name in ("Frames", "Columns", "Width", "Height")
            )
        places = ((i // columns * height, i % columns * width) for i in range(n))
        return np.stack([sheet[y : y + height, x : x + width] for y, x in places])


def movement(frames: np.ndarray) -> float:
    """Returns how much the pixels change from frame to frame, on average."""
    return float(np.abs(np.diff(frames.astype(int), axis=0)).mean())


def main(link: str, labeller: str = "a program") -> None:
    """Answers until there are no more pairs."""
    client = LabelClient(link, labeller)
    while leases := client.call("/api/next", {"n": 1})["leases"]:
        (lease,) = leases
        shown_at = time.time()
        left, right = (movement(client.clip(lease[side])) for side in ("left", "right"))
        answer = {
            "client_id": uuid.uuid4().hex,  # resend with the same id if you do not know whether it arrived
            "token": lease["token"],
            "comparison_id": lease["comparison_id"],
            "choice": "equal" if left == right else "left" if left > right else "right",
            "shown_at": shown_at,
            "answered_at": time.time(),
        }
        client.call("/api/answer", answer)
    status = client.call("/api/status")
    print(f"{status['labels']} of {status['goal']} labels. {status['reason']}")


if __name__ == "__main__":
    if "/#t=" not in "".join(sys.argv[1:2]):
        sys.exit("Give the link that the run printed, in quotes: http://HOST:PORT/#t=TOKEN")
    main(*sys.argv[1:])
