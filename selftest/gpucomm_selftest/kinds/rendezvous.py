"""How the copies of the self-test found each other: GC070."""

from gpucomm_selftest.kinds.kind import FAIL, PASS, Kind

KINDS: dict[str, Kind] = {
    "GC0700": Kind(
        level=PASS,
        title="all ranks met",
        expected="every copy that the launcher started reaches rank 0 within the deadline",
        action="nothing",
    ),
    "GC0701": Kind(
        level=FAIL,
        title="the launcher's environment is not whole",
        expected="a rank, a number of ranks and the address of rank 0, by the variables of one "
        "launcher; without any of them the self-test starts its own ranks",
        cause="variables of a launcher that are left over, or set by hand and not all of them; "
        "mpirun and PMI tell no address where ranks are on several hosts",
        action="set what is missing, for instance docker run -e RANK=0 -e WORLD_SIZE=2 "
        "-e MASTER_ADDR=HOST -e MASTER_PORT=29500, or mpirun -x MASTER_ADDR=HOST; or unset the "
        "rest, or use --launcher none to start ranks here",
        kubernetes="env: WORLD_SIZE, the number of pods, and MASTER_ADDR, the name of pod 0 by a "
        "headless service (JOB-0.SERVICE)",
        slurm="srun --export=ALL,MASTER_ADDR=$(scontrol show hostnames | head -n1) "
        "gpucomm-selftest",
    ),
    "GC0702": Kind(
        level=FAIL,
        title="a rank never came",
        expected="every copy that the launcher started reaches rank 0 within the deadline "
        "(--timeout changes it)",
        cause="a copy was not started or ended early, another address or port was given to it, or "
        "a firewall or network policy is between the hosts",
        action="look at the output of the missing ranks; give all the same MASTER_ADDR and "
        "MASTER_PORT, and let rank 0 be reached: docker run --network host, or one docker network",
        kubernetes="a headless service with publishNotReadyAddresses: true, and no NetworkPolicy "
        "between the pods",
        slurm="srun --label --kill-on-bad-exit=1 gpucomm-selftest shows which task fails; in a "
        "shell of `srun --pty` use --launcher none",
    ),
    "GC0703": Kind(
        level=FAIL,
        title="rank 0 cannot be reached",
        expected="a connection to rank 0 at MASTER_ADDR and MASTER_PORT within the deadline",
        cause="MASTER_ADDR names another host or does not resolve here, the port differs from that "
        "of rank 0, rank 0 was not started, or a firewall is in between",
        action="getent hosts $MASTER_ADDR shows the address; on the host of rank 0 "
        "hostname -I must show it; docker run --network host gives the container that address",
        kubernetes="MASTER_ADDR is the name of pod 0 by a headless service; with a Service of "
        "its own the port must be listed in it",
        slurm="export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)",
    ),
    "GC0704": Kind(
        level=FAIL,
        title="rank 0 cannot listen at its port",
        expected="rank 0 can listen at MASTER_PORT, or at one of the ports that follow from the "
        "job: the training's own store needs it as well",
        cause="a process that an earlier job left behind, another job on this host, or a service",
        action="ss -ltnp shows who has it; give all ranks another one with -e MASTER_PORT=N",
        kubernetes="another MASTER_PORT in env: of all pods; with hostNetwork the ports of the "
        "node count",
        slurm="export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
    ),
    "GC0705": Kind(
        level=FAIL,
        title="two copies claim one rank",
        expected="another rank in every copy, from 0 to the number of ranks - 1",
        cause="RANK was set by hand to the same value twice, is that of the host where several "
        "copies run on it, or two jobs use one address and port",
        action="count RANK over all copies, not over one host, or let torchrun do it",
        kubernetes="RANK from the label batch.kubernetes.io/job-completion-index",
        slurm="do not export RANK before srun; or let each task take RANK=$SLURM_PROCID itself",
    ),
    "GC0706": Kind(
        level=FAIL,
        title="a copy of the self-test was lost",
        expected="every copy that came stays until rank 0 has its verdict",
        cause="it was killed (the OOM killer, a scheduler, a launcher that gave up), stopped, or "
        "the network between the hosts broke",
        action="look at `dmesg` and at the launcher's log on the named host; docker inspect says "
        "OOMKilled",
        kubernetes="kubectl describe pod: Last State, Reason; an eviction or OOMKilled",
        slurm="sacct -j JOB --format=JobID,State,ExitCode,MaxRSS,NodeList",
    ),
    "GC0707": Kind(
        level=FAIL,
        title="the copies do not agree about the world",
        expected="the same number of ranks and the same version of the self-test in all copies",
        cause="WORLD_SIZE differs between hosts, or hosts run different images",
        action="give all copies the same WORLD_SIZE and image: docker image ls --digests",
        kubernetes="one image by digest in the pod template",
        slurm="srun --container-image with one .sqsh file for all nodes",
    ),
}
