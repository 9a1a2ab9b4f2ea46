"""What is known of single settings: names that went, values, costs. Data, with its sources.

Source where none is named: NCCL's user guide, "Environment Variables" (2.30.7), and its
NCCL_PARAM table; for torch, "ProcessGroupNCCL Environment Variables".
"""

# Names that no version reads any more, and what to use. NCCL's guide marks them as removed.
REMOVED = {
    "NCCL_IB_CUDA_SUPPORT": "NCCL_NET_GDR_LEVEL (since 2.4)",
    "NCCL_SINGLE_RING_THRESHOLD": "nothing: it is chosen (since 2.3)",
    "NCCL_LL_THRESHOLD": "NCCL_PROTO (since 2.5)",
    "NCCL_TREE_THRESHOLD": "NCCL_ALGO (since 2.5)",
    "NCCL_IB_GDR_LEVEL": "NCCL_NET_GDR_LEVEL (since 2.4)",
    "NCCL_CHECKS_DISABLE": "NCCL_CHECK_MODE",
}

# Names of torch before 2.2, and those of today.
RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "NCCL_HIGH_PRIORITY": "TORCH_NCCL_HIGH_PRIORITY",
}

# Set in public job scripts, and read by nobody.
WITHOUT_EFFECT = {
    "NCCL_TIMEOUT": "the time-out of torch is the argument `timeout` of init_process_group",
}

# Read by other software than NCCL: base images, plugins, tests, profilers.
FOREIGN_PREFIXES = (
    "NCCL_TESTS_",
    "NCCL_INSPECTOR_",
    "NCCL_PROFILE",
    "NCCL_FASTRAK_",
    "NCCL_GPUDIRECTTCPX_",
    "NCCL_TUNER_",
    "NCCL_SHARP_",
)
FOREIGN = {
    "NCCL_VERSION",
    "NCCL_HOME",
    "NCCL_ROOT",
    "NCCL_DIR",
    "NCCL_INCLUDE_DIR",
    "NCCL_LIB_DIR",
    "NCCL_LIBRARY",
    "NCCL_PLUGIN_P2P",
    "NCCL_CONF_FILE",
}

# Allowed words. A leading ^ excludes; commas part them.
_LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
WORDS: dict[str, tuple[str, ...]] = {
    "NCCL_ALGO": ("Ring", "Tree", "CollnetChain", "CollnetDirect", "NVLS", "NVLSTree", "PAT"),
    "NCCL_PROTO": ("LL", "LL128", "Simple"),
    "NCCL_DEBUG": ("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE"),
    "NCCL_DEBUG_SUBSYS": (
        *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST"),
        *("CALL", "PROXY", "NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "DIAG", "ALL"),
    ),
    "NCCL_P2P_LEVEL": _LEVELS,
    "NCCL_NET_GDR_LEVEL": _LEVELS,
    "NCCL_SOCKET_FAMILY": ("AF_INET", "AF_INET6"),
    "NCCL_IB_ADDR_FAMILY": ("AF_INET", "AF_INET6"),
    "NCCL_CHECK_MODE": ("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL"),
    "TORCH_DISTRIBUTED_DEBUG": ("OFF", "INFO", "DETAIL"),
}
# What RCCL knows besides (ROCm 7.14, environment variables).
WORDS_OF_RCCL: dict[str, tuple[str, ...]] = {
    "NCCL_DEBUG": ("NONE", "ERROR"),
    "NCCL_DEBUG_SUBSYS": ("VERBS",),
}
# Compared by strcmp, so not in small letters (src/graph/paths.cc, src/misc/socket.cc).
EXACT_CASE = {
    "NCCL_P2P_LEVEL",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_SOCKET_FAMILY",
    "NCCL_IB_ADDR_FAMILY",
}
# These take numbers too, from before there were words.
WORDS_OR_NUMBERS = {"NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"}
# With a wrong word these end the init: measured with 2.28.9 on an H200. Before 2.24 the parser
# passes over such words (src/graph/tuning.cc of 2.20.5 and 2.23.4).
FATAL_WORDS = {"NCCL_ALGO", "NCCL_PROTO"}
FATAL_SINCE = 22400

# torch takes these for switches as well as 0 and 1 (getCvarBool).
TORCH_SWITCHES = {"TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_DUMP_ON_TIMEOUT"}
SWITCH_WORDS = {"y", "yes", "t", "true", "n", "no", "f", "false"}
# One part for each function: `allreduce:tree;broadcast:ring`.
PER_FUNCTION = {"NCCL_ALGO", "NCCL_PROTO"}
FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")

# Least and most.
RANGES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(
        (
            "NCCL_P2P_DISABLE",
            "NCCL_SHM_DISABLE",
            "NCCL_IB_DISABLE",
            "NCCL_P2P_DIRECT_DISABLE",
            "NCCL_COLLNET_ENABLE",
            "NCCL_CUMEM_HOST_ENABLE",
            "NCCL_DMABUF_ENABLE",
            "NCCL_IGNORE_CPU_AFFINITY",
            "NCCL_MULTI_RANK_GPU_ENABLE",
            "NCCL_NET_GDR_READ",
            "NCCL_PXN_DISABLE",
            "NCCL_RAS_ENABLE",
            "TORCH_NCCL_BLOCKING_WAIT",
            "TORCH_NCCL_DUMP_ON_TIMEOUT",
        ),
        (0, 1),
    ),
    "NCCL_CROSS_NIC": (0, 2),
    "NCCL_NVLS_ENABLE": (0, 2),
    "NCCL_MNNVL_ENABLE": (0, 2),
    "NCCL_IB_PCI_RELAXED_ORDERING": (0, 2),
    "NCCL_CUMEM_ENABLE": (0, 1),
    "NCCL_IB_TIMEOUT": (1, 31),
    "NCCL_IB_RETRY_CNT": (0, 7),
    "NCCL_IB_SL": (0, 15),
    "NCCL_IB_TC": (0, 255),
    "NCCL_IB_QPS_PER_CONNECTION": (1, 128),
    "NCCL_SOCKET_NTHREADS": (1, 16),
    "NCCL_NSOCKS_PERTHREAD": (1, 16),
    "NCCL_NTHREADS": (64, 512),
    "NCCL_MIN_CTAS": (1, 64),
    "NCCL_MAX_CTAS": (1, 64),
    # AMD advises 112 on the MI300X.
    "NCCL_MIN_NCHANNELS": (1, 128),
    "NCCL_MAX_NCHANNELS": (1, 128),
    "NCCL_CGA_CLUSTER_SIZE": (0, 8),
    "NCCL_BUFFSIZE": (1, 1 << 31),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (0, 3),
    "TORCH_FR_BUFFER_SIZE": (0, 1 << 31),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": (0, 1 << 31),
}

# Left over from the search for an error: the value, and what it costs.
BYPASSES: dict[str, tuple[str, str]] = {
    # Two H200: 27 GB/s instead of 345 GB/s.
    "NCCL_P2P_DISABLE": ("1", "no NVLink: 12.7 times slower between two H200"),
    "NCCL_P2P_DIRECT_DISABLE": ("1", "no direct access within a process"),
    "NCCL_SHM_DISABLE": ("1", "ranks of one host talk through the network"),
    "NCCL_IB_DISABLE": ("1", "TCP instead of RDMA, some ten times slower"),
    # Two H200: 21 GB/s instead of 345 GB/s.
    "NCCL_MAX_CTAS": ("1", "one channel: 16 times slower between two H200"),
    "NCCL_MAX_NCHANNELS": ("1", "one channel: 16 times slower between two H200"),
    "NCCL_NVLS_ENABLE": ("0", "no NVLink SHARP: about 25 % of all_reduce on 8 H100"),
    "NCCL_CUMEM_ENABLE": ("0", "no NVLink SHARP, no registered buffers"),
    "NCCL_GDR_FLUSH_DISABLE": ("1", "stale data is possible"),
    "NCCL_IGNORE_DISABLED_P2P": ("1", "hides GPUs that cannot reach each other"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("0", "a peer that dies leaves the others waiting"),
}

# Settings for the search for an error that slow every step.
SLOW: dict[str, tuple[str, str]] = {
    "NCCL_DEBUG": ("TRACE", "a line for every call"),
    "NCCL_CHECK_MODE": ("DEBUG_GLOBAL", "every call is compared over all ranks"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is checked by another one first"),
    "CUDA_LAUNCH_BLOCKING": ("1", "no kernel overlaps with anything"),
    "TORCH_NCCL_BLOCKING_WAIT": ("1", "every wait blocks the host"),
}

# Files that a setting names. NCCL says nothing where one of them is missing (measured), but for
# the graph: without it the init ends (ncclTopoGetXmlGraphFromFile in src/graph/xml.cc).
FATAL_FILES = ("NCCL_GRAPH_FILE",)
FILES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG_FILE")
# Plugins: a path, or a part of a name that the loader looks up.
PLUGINS = (
    *("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"),
    *("NCCL_ENV_PLUGIN", "NCCL_GIN_PLUGIN", "NCCL_RMA_PLUGIN"),
)
INTERFACES = ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "GLOO_SOCKET_IFNAME")
