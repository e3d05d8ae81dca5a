"""`python -m label_server PREFS_DB RUN_FOLDER SOCKET NAME ORIGIN`, as `launch` starts it.

The socket is an open file's number; the name is that of who labels on this machine; the origin may be empty.
"""

import socket
import sys
from pathlib import Path

from drlhp.label_server.server import serve

serve(Path(sys.argv[1]), Path(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])), *sys.argv[4:])
