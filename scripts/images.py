"""Builds the images of deploy/Dockerfile, also where no registry and no network can be reached.

A build needs two things from outside: a base image with Python 3.11, and wheels. The wheels, pinned
by uv.lock and checked against its hashes, are put into the build context, so nothing is
downloaded during a build. Our own wheel is built here too, with the engine's inner loops in C where
this machine has a compiler. The base is what --base or BERTH_BASE_IMAGE names, or the official slim
image where the engine has it or can pull it, and otherwise one made here from Debian packages. Both
are cached under $XDG_CACHE_HOME/berthmaster by the hash of what they are made from.

Examples::

    scripts/images --push registry.example/berth    pushes all, prints digests, writes values
    scripts/images --save berth.tar                 one file of all, for a site without a network
    scripts/images --load berth.tar --push registry.site/berth    there, with nothing built

The file of values, deploy/run/images.yaml, is for `helm -f`: registry, tag and the digest of each.
A pushed image gets its SBOM, a CycloneDX list of its Python packages, as an OCI referrer.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from berthmaster.services import SERVICES
from scripts.registry import CYCLONEDX, RegistryError, attach

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "berthmaster"

OURS = "berthmaster["  # another extra of ours

# What a target needs beyond the common libraries.
EXTRAS = {"nats": ("embedded",), **{row.name: row.extras for row in SERVICES.values()}}
TARGETS = tuple(EXTRAS)

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
VALUES = ROOT / "deploy" / "run" / "images.yaml"
REGISTRY = re.compile(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*")
PYTHON = "3.11"  # of the default base, and of Debian 12, which the local base is made from
# By digest, from the Dockerfile.
OFFICIAL_BASE = next(
    line.removeprefix("ARG BASE=")
    for line in (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    if line.startswith("ARG BASE=")
)
MIRROR = os.environ.get("BERTH_DEBIAN_MIRROR", "http://deb.debian.org/debian")
DEBOOTSTRAP = ("--variant=minbase", "--include=python3,ca-certificates")
SUITE = "bookworm"
# Whatever nobody reads in a container: 267 MiB become 170.
LEFT_OUT = (
    "./dev/*",
    "./proc/*",
    "./sys/*",
    "./usr/share/doc/*",
    "./usr/share/locale/*",
    "./usr/share/man/*",
    "./var/cache/*",
    "./var/lib/apt/lists/*",
    "./var/log/*",
)

PULL_LIMIT_S = (
    180  # a registry that answers delivers 50 MiB in this time; a dead one must not hold us
)
FETCH_LIMIT_S = 600
PUSH_LIMIT_S = 600  # of one image: 200 MiB at most, the shared layers once
SAVE_LIMIT_S = 600
BUILD_LIMIT_S = 1200  # ends what hangs: a free machine takes a minute


class CannotBuild(Exception):
    """An image cannot be made; the text says what is missing."""


def say(text: str) -> None:
    """One progress line on stderr."""
    print(f"images: {text}", file=sys.stderr, flush=True)


def call(argv: Sequence[str | Path], limit_s: float, what: str, **env: str) -> str:
    """Run one command; its output is shown only when it fails."""
    try:
        done = subprocess.run(
            argv,
            env=os.environ | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise CannotBuild(f"{what}: {argv[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise CannotBuild(f"{what}: not done after {limit_s:.0f} s") from error
    if done.returncode:
        raise CannotBuild(f"{what}:\n{done.stdout[-4000:]}")
    return done.stdout


def fingerprint(*parts: object) -> str:
    """A short name for whatever the parts say."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


# ---- wheels


def requirements() -> dict[str, list[str]]:
    """What is to be installed: "common" for all, and for each target what its extra adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    needs = {
        t: [need for extra in EXTRAS[t] for need in extras[extra] if not need.startswith(OURS)]
        for t in TARGETS
    }
    return {"common": project["dependencies"]} | needs


def locked() -> dict[str, str]:
    """Return the pins of uv.lock, hashes included, that apply to the image's Python, by name. That
    Python need not be the one running here."""
    there = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.2"}
    export = ["uv", "export", "--quiet", "--locked", "--all-extras", "--no-emit-project"]
    export += ["--no-default-groups", "--group", "build", "--no-annotate", "--no-header"]
    text = call([*export, "--project", ROOT], FETCH_LIMIT_S, "what uv.lock pins")
    found = {}
    for entry in text.replace("\\\n", " ").splitlines():
        pinned, *hashes = entry.split("--hash=")
        requirement = Requirement(pinned.strip())
        if requirement.marker is None or requirement.marker.evaluate(there):
            line = f"{requirement.name}{requirement.specifier}"
            found[requirement.name] = " --hash=".join((line, *map(str.strip, hashes)))
    return {name: line for name, line in found.items() if name not in ("setuptools", "uv")}


def wheels() -> Path:
    """A folder with every wheel that the images install, and pip itself to install them."""
    lines = locked()
    machine = platform.machine()
    kept = CACHE / "wheels" / fingerprint(lines, machine, PYTHON)
    if kept.is_dir():
        return kept
    say("getting the wheels")
    tags = ("manylinux2014", *(f"manylinux_2_{glibc}" for glibc in (17, 28, 34, 36)))
    there = ["--python-version", PYTHON, "--implementation", "cp"]
    there += [part for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none")
              for part in ("--abi", abi)]  # fmt: skip
    there += [part for tag in tags for part in ("--platform", f"{tag}_{machine}")]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        fresh = Path(scratch) / "wheels"
        source, binary = Path(scratch) / "source.txt", Path(scratch) / "binary.txt"
        source.write_text(lines.pop("nkeys"))  # pure Python, but published as source only
        binary.write_text("\n".join(lines.values()))
        checked = ["--require-hashes", "--no-deps"]
        own = ["wheel", *checked, "--no-build-isolation", "--wheel-dir", str(fresh)]
        call([*pip, *own, "-r", source], FETCH_LIMIT_S, "the wheel of nkeys")
        fetch = ["download", *checked, "--only-binary", ":all:", *there, "--dest", str(fresh)]
        call([*pip, *fetch, "-r", binary], FETCH_LIMIT_S, "the wheels")
        fresh.rename(kept)
    return kept


def own_wheel(at: Path) -> None:
    """Berthmaster's own wheel, built from a copy: a build must leave no trace in the tree."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "source"
        shutil.copytree(
            ROOT / "services",
            copy / "services",
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so"),
        )
        for name in ("pyproject.toml", "setup.py", "README.md"):
            shutil.copy2(ROOT / name, copy / name)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel"]
        argv = [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(at), str(copy)]
        # The same sources give the same bytes, so that the engine's cache holds.
        call(argv, BUILD_LIMIT_S, "the wheel of berthmaster", SOURCE_DATE_EPOCH="315532800")


# ---- base image


def base_archive() -> Path:
    """The root file system of a base made from Debian's packages, as a tar file."""
    recipe = (SUITE, DEBOOTSTRAP, LEFT_OUT, platform.machine())
    archive = CACHE / "base" / f"{fingerprint(*recipe)}.tar"
    if archive.exists():
        return archive
    if os.geteuid() != 0:
        raise CannotBuild(f"no image {OFFICIAL_BASE} to be had, and only root can make a base")
    if not shutil.which("debootstrap"):
        if not shutil.which("apt-get"):
            raise CannotBuild(f"no image {OFFICIAL_BASE} to be had, and no debootstrap to make one")
        apt = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", "debootstrap"]
        call(apt, FETCH_LIMIT_S, "debootstrap", DEBIAN_FRONTEND="noninteractive")
    say(f"making a base image from Debian {SUITE}, once (about 40 s)")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        root = Path(scratch) / "root"
        make = ["debootstrap", *DEBOOTSTRAP, SUITE, str(root), MIRROR]
        call(make, FETCH_LIMIT_S, "debootstrap")
        fresh = Path(scratch) / "base.tar"
        left_out = [f"--exclude={pattern}" for pattern in LEFT_OUT]
        pack = ["tar", "--numeric-owner", *left_out, "-C", str(root), "-cf", str(fresh), "."]
        call(pack, FETCH_LIMIT_S, "packing the base image")
        fresh.rename(archive)
    return archive


def base_image(named: str | None) -> str:
    """The name of a base image that the engine has when this returns."""
    wanted = named or OFFICIAL_BASE
    if has_image(wanted):
        return wanted
    try:
        call(["docker", "pull", "--quiet", wanted], PULL_LIMIT_S, f"the base image {wanted}")
        return wanted
    except CannotBuild:
        if named:
            raise
    archive = base_archive()
    local = f"berthmaster/base:{archive.stem}"
    if not has_image(local):
        say(f"no registry has {OFFICIAL_BASE} for us: using the base made here")
        call(["docker", "import", str(archive), local], BUILD_LIMIT_S, "importing the base image")
    return local


def has_image(name: str) -> bool:
    """Whether the engine has it. An engine that does not answer is an error, not a no."""
    name = re.sub(r":[^:/@]+@", "@", name)  # it keeps what has a digest without its tag
    argv = ["docker", "images", "--quiet", "--no-trunc", name]
    return bool(call(argv, 30, "the Docker engine").strip())


# ---- images


def build(targets: Sequence[str], base: str, tag: str) -> dict[str, str]:
    """Build the targets; their names with the ids of their images."""
    built = {}
    with tempfile.TemporaryDirectory() as scratch:
        context = Path(scratch)
        shutil.copytree(wheels(), context / "libs")
        own_wheel(context / "app")
        (context / "requirements").mkdir()
        for name, needs in requirements().items():
            (context / "requirements" / f"{name}.txt").write_text("".join(f"{n}\n" for n in needs))
        for name in ("nats-server.conf", "websocket.conf", "healthy.py"):
            shutil.copy2(ROOT / "deploy" / "nats" / name, context)
        for target in targets:
            started_s = time.monotonic()
            name = f"berthmaster/{target}:{tag}"
            argv = ["docker", "build", "--file", str(ROOT / "deploy" / "Dockerfile")]
            argv += ["--target", target, "--build-arg", f"BASE={base}", "--tag", name, scratch]
            call(argv, BUILD_LIMIT_S, f"building {name}")
            inspected = call(["docker", "image", "inspect", name], 30, f"inspecting {name}")
            image = json.loads(inspected)[0]
            built[name] = image["Id"]
            took_s, size_mib = time.monotonic() - started_s, image["Size"] / 2**20
            say(f"{name}: {size_mib:.0f} MiB, {took_s:.1f} s")
    return built


def push(targets: Sequence[str], tag: str, registry: str) -> dict[str, str]:
    """Push what is built; the digest of each target."""
    digests = {}
    for target in targets:
        name = f"{registry}/{target}:{tag}"
        call(["docker", "tag", f"berthmaster/{target}:{tag}", name], 30, f"naming {name}")
        told = call(["docker", "push", name], PUSH_LIMIT_S, f"pushing {name}")
        found = re.search(r"digest: (sha256:[0-9a-f]{64})", told)
        if found is None:
            raise CannotBuild(f"pushing {name}: docker told no digest:\n{told[-2000:]}")
        digests[target] = found[1]
        print(f"{name} {found[1]}", flush=True)
    return digests


def sbom(target: str) -> bytes:
    """Return the CycloneDX list of the Python packages of a target; equal for equal pins."""
    export = ["uv", "export", "--quiet", "--locked", "--no-default-groups"]
    extras = [word for extra in EXTRAS[target] for word in ("--extra", extra)]
    form = ["--format", "cyclonedx1.5", "--preview-features", "sbom-export"]
    argv = [*export, *extras, *form, "--project", str(ROOT)]
    listed = json.loads(call(argv, FETCH_LIMIT_S, f"the SBOM of {target}"))
    listed.pop("serialNumber", None)  # these two differ at each call
    listed["metadata"].pop("timestamp", None)
    return json.dumps(listed, indent=1).encode()


def attach_sboms(registry: str, digests: Mapping[str, str]) -> None:
    """Attach its SBOM to each pushed image."""
    for target, digest in digests.items():
        name = f"{registry}/{target}"
        try:
            attach(name, digest, CYCLONEDX, sbom(target))
        except RegistryError as error:
            raise CannotBuild(
                f"the images are pushed, and {name} has no SBOM: {error}\n"
                "A registry without OCI artifacts takes none: --no-sbom leaves them out."
            ) from error
    say(f"{len(digests)} SBOMs attached")


def save(targets: Sequence[str], tag: str, file: Path) -> None:
    """Write all of them into one file, whole or not at all."""
    names = [f"berthmaster/{target}:{tag}" for target in targets]
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        call(["docker", "save", "--output", unfinished, *names], SAVE_LIMIT_S, f"saving {file}")
        unfinished.replace(file)
    except OSError as error:
        raise CannotBuild(f"saving {file}: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    say(f"{file}: {len(names)} images, {file.stat().st_size / 2**20:.0f} MiB")


def load(file: Path) -> None:
    """Give the engine the images of a saved file."""
    if not file.is_file():
        raise CannotBuild(f"--load {file}: there is no such file")
    call(["docker", "load", "--quiet", "--input", file], SAVE_LIMIT_S, f"loading {file}")


def write_values(file: Path, registry: str, tag: str, digests: Mapping[str, str]) -> None:
    """Write what the chart takes for these images."""
    lines = ["# Made by scripts/images.", "image:", f"  registry: {registry}", f'  tag: "{tag}"']
    lines += ["  digests:", *(f"    {name}: {digest}" for name, digest in digests.items())]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    say(f"{file}: values for the chart (helm -f)")


def main(argv: Sequence[str]) -> int:
    """`fetch`, or build what is named, or all; then push and save."""
    parser = argparse.ArgumentParser(prog="scripts/images", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    named = os.environ.get("BERTH_BASE_IMAGE") or None
    parser.add_argument("--base", default=named, help=f"default: {OFFICIAL_BASE}, or one made here")
    parser.add_argument("--tag", default=VERSION, help=f"default: {VERSION}")
    parser.add_argument("--push", metavar="REGISTRY", help="HOST[:PORT][/PATH], before /TARGET")
    parser.add_argument("--no-sbom", action="store_true", help="with --push: attach no SBOMs")
    parser.add_argument("--values", type=Path, default=VALUES, metavar="FILE", help="with --push")
    parser.add_argument("--save", type=Path, metavar="FILE", help="one archive of all images")
    parser.add_argument("--load", type=Path, metavar="FILE", help="such an archive; builds nothing")
    args = parser.parse_args(argv)
    fetch_only = args.targets == ["fetch"]
    targets = tuple(args.targets) if args.targets and not fetch_only else TARGETS
    if unknown := [target for target in targets if target not in TARGETS]:
        parser.error(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    if args.push and not REGISTRY.fullmatch(args.push):
        parser.error(
            f"--push {args.push}: right is HOST[:PORT][/PATH], as in registry.example/berth"
        )
    try:
        if fetch_only:
            wheels()
            if args.base is None:
                base_archive()
            return 0
        if args.load:
            load(args.load)
        else:
            build(targets, base_image(args.base), args.tag)
        if args.save:
            save(targets, args.tag, args.save)
        if args.push:
            digests = push(targets, args.tag, args.push)
            write_values(args.values, args.push, args.tag, digests)
            if not args.no_sbom:
                attach_sboms(args.push, digests)
    except CannotBuild as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
