"""Where the processes of job.sh meet: interface, address and port. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ddp_ladder.launch import INTERFACE_VARIABLES
from ddp_ladder.network import PORTS
from ddp_ladder.plan import RunSpec
from ddp_ladder.shell_text import Lines, indented, quote


def meeting(spec: RunSpec) -> Iterable[Lines]:
    """Sections that set MASTER_ADDR and MASTER_PORT, and on several nodes define find_interface."""
    if spec.nodes > 1 or spec.interface != "auto":
        yield ["fail() {", '    echo "$(hostname): $*" >&2', "    exit 1", "}"]
    if spec.nodes == 1:
        yield [
            "# The processes meet on this node.",
            *_find_interface(spec),
            *interface_exports(spec),
        ]
    else:
        yield from _find_on_several(spec)
    yield [
        "# Where the processes meet. Another job on the same node has another port, all of them below the range that",
        "# outgoing connections take theirs from.",
        'export MASTER_ADDR="$own_address"',
        f'export MASTER_PORT="$(({PORTS.start} + job_id % {len(PORTS)}))"',
    ]


def _find_on_several(spec: RunSpec) -> Iterable[Lines]:
    if not isinstance(spec.interface, str) or spec.interface == "auto":
        yield [
            "# The second node's address tells the first node which of its interfaces leads to the others.",
            'mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            'read -r second_address _ < <(getent ahostsv4 "${nodes[1]}") || fail "${nodes[1]} has no IPv4 address"',
            "export second_address",
        ]
    yield [
        "# The interface of the node that runs this, and its address there.",
        "find_interface() {",
        *indented(_find_interface(spec)),
        "}",
    ]
    yield [
        "# This script runs on the first node of the job. Its name may stand for another network, or for the loopback,",
        "# so the others get the address that it has on the training's own interface.",
        "find_interface",
        'case $own_address in 127.*) fail "$own_interface is the loopback, which no other node reaches" ;; esac',
    ]


def _find_interface(spec: RunSpec) -> Lines:
    """Lines that set own_interface and own_address."""
    if isinstance(spec.interface, str):
        return _automatic(spec) if spec.interface == "auto" else [f"own_interface={quote(spec.interface)}", *_address()]
    named = {node: name for node, name in spec.interface.items() if name != "auto"}
    return [
        "# network.interface of cluster.yaml.",
        "case $(hostname -s) in",
        *indented(f"{quote(node)}) own_interface={quote(name)} ;;" for node, name in named.items()),
        "    *) own_interface=auto ;;",
        "esac",
        'if [ "$own_interface" = auto ]; then',
        *indented(_automatic(spec)),
        "else",
        *indented(_address()),
        "fi",
    ]


def _address() -> Lines:
    return [
        'read -r _ _ _ own_address _ < <(ip -o -4 address show dev "$own_interface") ||',
        '    fail "no IPv4 address on the interface $own_interface"',
        "own_address=${own_address%/*}",
    ]


def _automatic(spec: RunSpec) -> Lines:
    if spec.nodes == 1:
        return [
            "# The loopback, which has another name on macOS: there is no other node.",
            "own_interface=lo own_address=127.0.0.1",
            'if [ "$(uname)" = Darwin ]; then own_interface=lo0; fi',
        ]
    return [
        "# auto: the interface of the route to the first node, and on the first that to the second.",
        "peer=$MASTER_ADDR",
        'if [ "$SLURM_NODEID" -eq 0 ]; then peer=$second_address; fi',
        'route=$(ip -o -4 route get "$peer")',
        "own_interface=${route#* dev } own_interface=${own_interface%% *}",
        "own_address=${route#* src } own_address=${own_address%% *}",
    ]


def interface_exports(spec: RunSpec) -> Lines:
    """Tells the back ends of own_interface, unless the configuration has told them another."""
    names = [name for name in INTERFACE_VARIABLES if name not in spec.env]
    return ["export " + " ".join(f'{name}="$own_interface"' for name in names)] if names else []
