"""`python -m drlhp.label_server PREFS_DB RUN_FOLDER SOCKET NAME ORIGIN`, as `launch` starts it.

SOCKET is the number of an open file. NAME is the labeller's on this machine. ORIGIN may be empty.
"""

import socket
import sys
from pathlib import Path

from drlhp.label_server.server import serve

serve(Path(sys.argv[1]), Path(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])), *sys.argv[4:])
