"""The folders that a program needs to run."""

from pathlib import Path

from kingdom.soldiers.sandbox.programs import (
    folders_of_program,
    folders_of_tools,
    toolchain_environment,
    toolchain_programs,
)


def a_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


def a_python(prefix: Path) -> Path:
    a_file(prefix / "lib" / "python3.12" / "os.py")
    return a_file(prefix / "bin" / "python3.12")


def a_venv(folder: Path, python: Path) -> Path:
    a_file(folder / "pyvenv.cfg")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(python)
    return a_file(folder / "bin" / "tool")


def test_the_folder_of_a_program_is_visible(tmp_path: Path) -> None:
    assert folders_of_program(a_file(tmp_path / "tools" / "tool")) == (tmp_path / "tools",)
    assert folders_of_program(Path("/bin/sh")) == ()


def test_the_libraries_of_a_rust_toolchain_are_visible_too(tmp_path: Path) -> None:
    a_file(tmp_path / "stable" / "lib" / "rustlib" / "components")
    cargo = a_file(tmp_path / "stable" / "bin" / "cargo")
    assert folders_of_program(cargo) == (tmp_path / "stable",)
    assert set(folders_of_tools(cargo.parent)) == {tmp_path / "stable", cargo.parent}


def test_a_virtual_environment_and_its_python_are_visible(tmp_path: Path) -> None:
    python = a_python(tmp_path / "pythons" / "3.12.4")
    (tmp_path / "pythons" / "3.12").symlink_to("3.12.4")
    tool = a_venv(tmp_path / "venv", tmp_path / "pythons" / "3.12" / "bin" / python.name)
    shown = {tmp_path / "venv", tmp_path / "pythons" / "3.12", tmp_path / "pythons" / "3.12.4"}
    assert set(folders_of_program(tool)) == shown
    link = tmp_path / "bin" / "tool"
    link.parent.mkdir()
    link.symlink_to(tool)
    assert set(folders_of_program(link)) == {*shown, link.parent}
    assert set(folders_of_tools(link.parent)) == {*shown, link.parent}


def test_a_link_to_python_in_a_home_does_not_show_the_home(tmp_path: Path) -> None:
    a_file(tmp_path / "home" / "lib" / "python3.12" / "site-packages" / "own.py")
    link = tmp_path / "home" / "bin" / "python3.12"
    link.parent.mkdir()
    link.symlink_to(a_python(tmp_path / "python"))
    tool = a_venv(tmp_path / "venv", link)
    assert set(folders_of_program(tool)) == {tmp_path / "venv", link.parent, tmp_path / "python"}


def test_files_next_to_an_npm_package_are_visible(tmp_path: Path) -> None:
    tool = a_file(tmp_path / "lib" / "node_modules" / "agent" / "node_modules" / "part" / "main.js")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "agent").symlink_to("../lib/node_modules/agent/node_modules/part/main.js")
    assert folders_of_program(tool) == (tmp_path / "lib" / "node_modules",)
    assert folders_of_tools(tmp_path / "bin") == (tmp_path / "bin", tmp_path / "lib" / "node_modules")


def test_links_in_a_tool_folder_to_other_files_make_no_other_folder_visible(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "own").symlink_to(a_file(tmp_path / "home" / "own"))
    (tmp_path / "bin" / "loop").symlink_to("loop")
    assert folders_of_tools(tmp_path / "bin") == (tmp_path / "bin",)
    assert folders_of_tools(tmp_path / "nowhere") == ()


def test_toolchains_in_a_home_are_found_newest_first(tmp_path: Path) -> None:
    assert toolchain_programs(tmp_path) == []
    assert toolchain_environment(tmp_path) == {}
    for name in (".cargo/bin", ".local/bin", ".nvm/versions/node/v9.1.0/bin", ".nvm/versions/node/v20.3.1/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".rustup").mkdir()
    names = [str(path.relative_to(tmp_path)) for path in toolchain_programs(tmp_path)]
    assert names == [
        *(".local/bin", ".cargo/bin", ".nvm/versions/node/v20.3.1/bin", ".nvm/versions/node/v9.1.0/bin"),
    ]
    assert toolchain_environment(tmp_path) == {"RUSTUP_HOME": str(tmp_path / ".rustup")}
