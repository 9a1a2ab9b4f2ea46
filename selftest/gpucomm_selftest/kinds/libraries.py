"""The libraries that a process has really loaded: GC012."""

from gpucomm_selftest.kinds.kind import FAIL, INFO, WARN, Kind

KINDS: dict[str, Kind] = {
    "GC0120": Kind(
        level=WARN,
        title="a variable makes torch load another collective library than its own",
        expected="the library that torch's own search path leads to: it is the one that torch was "
        "tested with, and that this image was verified with",
        cause="LD_PRELOAD or LD_LIBRARY_PATH of the image, the job script or a module system",
        action="unset the variable, unless it is there on purpose: then set it on every rank",
        kubernetes="look at env of the pod and at the image: kubectl exec POD -- env",
        slurm="srun --export=NIL,PATH, or module purge, before the job",
    ),
    "GC0121": Kind(
        level=WARN,
        title="two files of one library are loaded",
        expected="one file of each library and major version: state is kept twice, and calls reach "
        "either of them",
        cause="a second copy in a package, or a variable that leads to one",
        action="remove the one that the image does not own; measured says who brought each",
    ),
    "GC0122": Kind(
        level=INFO,
        title="the variable NCCL_VERSION is not the version that is loaded",
        expected="nothing: base images set it for their own package, and torch loads another file",
        cause="a base image with NCCL of its own, or a job script",
        action="nothing; believe the version in the header",
    ),
    "GC0123": Kind(
        level=FAIL,
        title="the collective library lacks functions that torch calls",
        expected="every symbol that torch's libraries need: the first call of a missing one ends "
        "the process (undefined symbol)",
        cause="an older library than torch was compiled for, by LD_PRELOAD, LD_LIBRARY_PATH or a "
        "package that was changed by hand",
        action="install the NCCL that this torch asks for: pip install --force-reinstall torch",
    ),
    "GC0124": Kind(
        level=WARN,
        title="a library was replaced while it was loaded",
        expected="the file on the disk is the one in memory",
        cause="an installation while this process ran",
        action="start again; nothing else if the installation is over",
    ),
    "GC0125": Kind(
        level=WARN,
        title="a library is not the file that its package installed",
        expected="the size that the package recorded",
        cause="a file that was copied over it, or a second package with the same path",
        action="pip install --force-reinstall the package that measured names",
    ),
    "GC0126": Kind(
        level=WARN,
        title="two packages claim one library",
        expected="one owner: which of them was installed last decides what is loaded",
        cause="packages of two CUDA versions side by side, such as nvidia-nccl-cu12 and -cu13",
        action="uninstall both, and install the one that torch asks for",
    ),
    "GC0127": Kind(
        level=WARN,
        title="a package is not the one that the image was locked with",
        expected="the versions of /opt/gpucomm/pins: these were tested together",
        cause="a package that was installed into the image afterwards, past its constraints",
        action="install without --no-deps and without another PIP_CONSTRAINT, or build an image "
        "with these versions: gpucomm build",
    ),
    "GC0128": Kind(
        level=WARN,
        title="LD_PRELOAD names a library that was not loaded",
        expected="every library that LD_PRELOAD names: the loader says so on stderr and goes on, "
        "and torch runs with its own",
        cause="a path of another image or of the host, or a library for another machine",
        action="correct the path, mount it, or unset LD_PRELOAD",
    ),
}
