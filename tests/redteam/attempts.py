"""The attempts of a hostile agent in its sandbox, each with the defense that stops it."""

from dataclasses import dataclass

_MOUNTS = "mount namespace: the path is not there"
_READ_ONLY = "mount namespace: the path is read-only"
_MOUNT_POINT = "mount namespace: a mount point cannot be moved or removed"
_NET = "network namespace: only its own loopback exists"
_PID = "pid namespace: the process is not there"
_KERNEL = "no capability, no new privileges, no user namespace"
_CALLS = "seccomp filter"
_PROXY = "model proxy: not on the list of allowed requests"
_LIMITS = "limits: control group or rlimit"
# Stopped only where a control group can be created.
MEMORY = "use_up_the_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One trick of a hostile agent, and the defense that stops it.

    If only the sandbox stops the trick (`only_sandbox`), it succeeds without a sandbox. The gate tries only `quick`
    attempts.
    """

    trick: str
    stopped_by: str
    only_sandbox: bool = False
    quick: bool = False

    @property
    def name(self) -> str:
        """Return the name of the trick in words."""
        return self.trick.replace("_", " ")


def _attempts(stopped_by: str, *tricks: str, only_sandbox: bool = False, quick: str = "") -> list[Attempt]:
    return [
        Attempt(trick=trick, stopped_by=stopped_by, only_sandbox=only_sandbox, quick=trick == quick) for trick in tricks
    ]


ATTEMPTS = [
    *_attempts(
        _MOUNTS,
        "read_a_file_of_the_host",
        "list_the_folder_of_the_host",
        "read_the_checkout_of_another_run",
        "write_into_the_checkout_of_another_run",
        "write_into_the_folder_of_the_host",
        "follow_a_link_out",
        "hard_link_a_file_of_the_host",
        "reach_a_service_by_its_socket_file",
        only_sandbox=True,
        quick="read_a_file_of_the_host",
    ),
    *_attempts(
        _MOUNTS,
        "read_the_memory_of_the_machine",
        "go_through_the_root_of_another_process",
        "read_the_passwords_of_registries",
    ),
    *_attempts("programs inherit only three pipes", "use_an_inherited_descriptor"),
    *_attempts(
        _READ_ONLY,
        "change_a_report",
        "configure_a_program_for_git",
        "write_the_configuration_by_hand",
        "plant_a_hook",
        "forge_a_fetched_branch",
        "forge_a_checkpoint",
        "move_the_branch_of_another_run",
        "destroy_the_objects",
        "use_the_objects_of_another_repository",
        only_sandbox=True,
        quick="configure_a_program_for_git",
    ),
    *_attempts(
        _READ_ONLY, "write_into_the_system", "change_the_program_that_runs_the_agent", quick="write_into_the_system"
    ),
    *_attempts(
        _MOUNT_POINT,
        "replace_the_git_pointer_of_the_checkout",
        "replace_the_git_pointer_with_a_folder",
        "move_the_checkout_away",
        only_sandbox=True,
        quick="replace_the_git_pointer_of_the_checkout",
    ),
    *_attempts(
        _READ_ONLY,
        "have_the_kernel_run_a_program",
        "restart_the_machine",
        "change_the_settings_of_the_machine",
        quick="have_the_kernel_run_a_program",
    ),
    *_attempts(_KERNEL, "make_the_system_writable", "mount_over_the_passwords", "make_a_device", "rename_the_machine"),
    *_attempts(
        _KERNEL,
        "become_root",
        "become_root_in_a_user_namespace",
        "raise_its_resource_limits",
        quick="become_root_in_a_user_namespace",
    ),
    *_attempts(
        _CALLS,
        "make_a_file_set_user_id",
        "create_a_file_with_set_user_id",
        only_sandbox=True,
        quick="make_a_file_set_user_id",
    ),
    *_attempts(
        _CALLS,
        "read_the_keyring_of_the_user",
        "create_a_bpf_map",
        "open_a_performance_counter",
        "use_io_uring",
        "open_a_packet_socket",
        "open_a_vsock_socket",
    ),
    *_attempts(
        _PID,
        "see_a_process_of_the_host",
        "count_the_processes_of_the_machine",
        "read_the_environment_of_all_processes",
        "read_the_arguments_of_all_processes",
        "read_the_memory_of_all_processes",
        "signal_a_process_of_the_host",
        "attach_to_a_process_of_the_host",
        "kill_everything",
        "kill_the_first_process",
        "leave_a_process_behind",
        quick="read_the_environment_of_all_processes",
    ),
    *_attempts("ipc namespace: the memory is not there", "read_shared_memory", only_sandbox=True),
    *_attempts(
        _LIMITS,
        "fork_without_limit",
        "write_a_huge_file",
        only_sandbox=True,
        quick="write_a_huge_file",
    ),
    *_attempts("limits: control group", MEMORY, only_sandbox=True),
    *_attempts(_LIMITS, "fill_the_memory_of_the_machine_with_files"),
    *_attempts(
        _NET,
        "reach_a_service_of_the_machine",
        "reach_a_service_by_an_abstract_name",
        only_sandbox=True,
        quick="reach_a_service_of_the_machine",
    ),
    *_attempts(_NET, "ask_the_cloud_for_credentials", "reach_the_internet", "send_a_secret_in_a_dns_query"),
    *_attempts(_MOUNTS, "reach_the_proxy_of_another_soldier", only_sandbox=True),
    *_attempts(
        _PROXY,
        "request_another_path_through_the_proxy",
        "request_another_host_through_the_proxy",
        "open_a_tunnel_through_the_proxy",
        "leave_the_allowed_path_with_dots",
        "leave_the_allowed_path_with_encoded_slashes",
        quick="request_another_path_through_the_proxy",
    ),
    *_attempts("model proxy: the request is malformed", "smuggle_a_second_request", "inject_a_header_line"),
    *_attempts(
        "model proxy: the key is removed from errors of the vendor",
        "have_the_vendor_quote_the_key",
        quick="have_the_vendor_quote_the_key",
    ),
    *_attempts(
        "model proxy: requests that make the vendor fetch are refused",
        "have_the_vendor_fetch_an_address",
        "have_the_vendor_call_a_server",
        quick="have_the_vendor_fetch_an_address",
    ),
    *_attempts("model proxy: only known headers and parameters are forwarded", "choose_another_account"),
    *_attempts("model proxy: the number of connections is limited", "use_up_the_connections_of_the_host"),
]
# Without a sandbox these would damage the test machine or leave it.
NEVER_OUTSIDE = frozenset(
    {
        "write_into_the_system",
        "change_the_program_that_runs_the_agent",
        "make_the_system_writable",
        "mount_over_the_passwords",
        "make_a_device",
        "read_the_memory_of_the_machine",
        "rename_the_machine",
        "have_the_kernel_run_a_program",
        "restart_the_machine",
        "change_the_settings_of_the_machine",
        "kill_everything",
        "kill_the_first_process",
        "ask_the_cloud_for_credentials",
        "reach_the_internet",
        "send_a_secret_in_a_dns_query",
        "fill_the_memory_of_the_machine_with_files",
        "create_a_bpf_map",
        "open_a_performance_counter",
        "open_a_packet_socket",
    }
)
