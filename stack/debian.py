"""Another release of Debian in a folder, for the versions of programs that it has.

Trixie has RabbitMQ 4.0 and Python 3.13. Only root can make the folder and run what is in it. The
mirror is the one that apt's own sources name.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from stack.bootstrap import locked
from stack.program import FILES, CannotStart

PACKAGES = ("ca-certificates", "python3", "rabbitmq-server")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_NO_SERVICES = "#!/bin/sh\nexit 101\n"
"""policy-rc.d: a package that is installed starts no service."""


def debian(release: str, cache: Path) -> Path:
    """The root folder of a release (its codename) with PACKAGES, made when it is not there: 0.6
    GB, a minute.

    Raises CannotStart with the remedy.
    """
    root = cache / f"debian-{release}"
    if root.is_dir():
        return root
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CannotStart(
            f"Debian {release} can be unpacked and entered by root of a Debian system alone. "
            "Remedy: run it as root, or unset MAILSLICE_STACK_RABBITMQ_RELEASE"
        )
    cache.mkdir(parents=True, exist_ok=True)
    log = cache / f"debian-{release}.log"
    with locked(cache / f"debian-{release}.lock"):
        if not root.is_dir():
            scratch = cache / f"debian-{release}.partial"
            shutil.rmtree(scratch, ignore_errors=True)
            try:
                _make(release, scratch / "root", log)
            except (OSError, subprocess.SubprocessError) as error:
                raise CannotStart(
                    f"Debian {release} could not be unpacked ({error}). Remedy: look at the "
                    f"network and at {log}, then try again"
                ) from None
            (scratch / "root").rename(root)
            shutil.rmtree(scratch)
    return root


def inside(root: Path, shared: Iterable[Path], *command: str) -> tuple[str, ...]:
    """The command that runs `command` in the folder `root`.

    It sees /proc, /dev, the network, and the folders `shared` at their own paths. The mounts are
    its own: they end with it. Its process is that of the command, which signals reach.
    """
    own_mounts = ("unshare", "--mount", "--propagation", "private")
    enter = ("sh", "-e", str(FILES / "enter.sh"), str(root), *map(str, shared), "--")
    return (*own_mounts, *enter, *command)


def mirror(targets: str, codename: str) -> str:
    """The mirror of this system's release, by the output of `apt-get indextargets`: one line for
    each source, with URI and codename.

    Raises CannotStart.
    """
    for line in targets.splitlines():
        uri, _, name = line.rpartition(" ")
        if name == codename:
            return uri
    raise CannotStart(
        f"apt's sources name no mirror of {codename}. Remedy: give apt the sources of this system"
    )


def _make(release: str, root: Path, log: Path) -> None:
    tools = root.parent / "tools"
    tools.mkdir(parents=True)
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    form = ("--format", "$(REPO_URI) $(CODENAME)")
    targets = subprocess.run(
        ["apt-get", "indextargets", *form, "Identifier: Packages"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    packages = ("apt-get", "install", "-q", "-y", "--no-install-recommends", *PACKAGES)
    with log.open("w", encoding="utf-8") as out:

        def run(*command: str, **more: str) -> None:
            subprocess.run(
                command,
                check=True,
                cwd=tools,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", **more},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

        run("apt-get", "update", "-q")
        # Unpacked, not installed: this system stays as it is.
        run("apt-get", "download", "-q", "debootstrap")
        run("dpkg-deb", "-x", *(file.name for file in tools.glob("debootstrap_*.deb")), ".")
        run(
            str(tools / "usr/sbin/debootstrap"),
            "--variant=minbase",
            f"--keyring={_KEYRING}",
            *(release, str(root), mirror(targets, codename)),
            DEBOOTSTRAP_DIR=str(tools / "usr/share/debootstrap"),
        )
        no_services = root / "usr/sbin/policy-rc.d"
        no_services.write_text(_NO_SERVICES, encoding="utf-8")
        no_services.chmod(0o755)
        run(*inside(root, (), "apt-get", "update", "-q"))
        run(*inside(root, (), *packages))
        run(*inside(root, (), "apt-get", "clean"))
