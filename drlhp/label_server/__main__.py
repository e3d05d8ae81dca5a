"""`python -m drlhp.label_server PREFS_DB RUN_FOLDER SOCKET NAME ORIGIN FRAMED`, as `launch` starts it.

SOCKET is the number of an open file. NAME is the labeller's on this machine. ORIGIN may be empty.
FRAMED is 1 if other pages of this machine may show the page in a frame, else 0.
"""

import socket
import sys
from pathlib import Path

from drlhp.label_server.server import serve

db_path, run_dir, number, labeller, origin, framed = sys.argv[1:]
serve(Path(db_path), Path(run_dir), socket.socket(fileno=int(number)), labeller, origin, framed == "1")
