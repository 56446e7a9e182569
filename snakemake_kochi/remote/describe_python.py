"""What a Python is, as one line of JSON: executed on another host, by each Python that is found.

So it needs nothing but the standard library, and works in every version of Python 3.
"""

import json
import os
import platform
import sys
import sysconfig

# Without these the package, or what it depends on, does not work.
NEEDED = ("ctypes", "sqlite3", "ssl", "venv", "zlib")


def lacks(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return True
    return False


def libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return ""


version = platform.python_version()
print(
    json.dumps(
        {
            "path": sys.argv[1],
            "executable": getattr(sys, "_base_executable", None) or sys.executable,
            "version": list(sys.version_info[:3]),
            "implementation": sys.implementation.name,
            "soabi": sysconfig.get_config_var("SOABI") or "",
            "libc": libc(),
            "is_64_bit": sys.maxsize > 2**32,
            "lacks": [name for name in NEEDED if lacks(name)],
            "has_ensurepip": not lacks("ensurepip.__main__"),
            "has_pip": not lacks("pip"),
            "markers": {
                "implementation_name": sys.implementation.name,
                "implementation_version": version,
                "os_name": os.name,
                "platform_machine": platform.machine(),
                "platform_python_implementation": platform.python_implementation(),
                "platform_release": platform.release(),
                "platform_system": platform.system(),
                "platform_version": platform.version(),
                "python_full_version": version,
                "python_version": ".".join(version.split(".")[:2]),
                "sys_platform": sys.platform,
            },
        }
    )
)
