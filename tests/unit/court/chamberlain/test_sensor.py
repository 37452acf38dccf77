"""Processor pressure: the pressure of the last two minutes according to the kernel, or the load average."""

from pathlib import Path

import pytest

from kingdom.court.chamberlain.sensor import ProcessorPressure


class Machine:
    """A machine whose time, pressure file and load the test sets."""

    def __init__(self, directory: Path, *, has_pressure: bool = True) -> None:
        self.file = directory / "cpu"
        self.at = 1000.0
        self.load = 0.0
        self._waited = 77.0
        if has_pressure:
            self._write(0)

    def sensor(self) -> ProcessorPressure:
        return ProcessorPressure(self.file, load=lambda: self.load, clock=lambda: self.at)

    def spend(self, seconds: float, percent: float, avg60: float = 0) -> None:
        self.at += seconds
        self._waited += seconds * percent / 100
        self._write(avg60)

    def _write(self, avg60: float) -> None:
        some = f"some avg10=99.00 avg60={avg60:.2f} avg300=0.00 total={self._waited * 1_000_000:.0f}"
        self.file.write_text(f"{some}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")


def test_the_pressure_is_that_of_the_last_two_minutes(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    sensor = machine.sensor()
    for _ in range(8):
        machine.spend(30, 90)
        sensor.read()
    assert sensor.read() == pytest.approx(90)
    machine.spend(60, 0)
    assert sensor.read() == pytest.approx(45)
    machine.spend(60, 0)
    assert sensor.read() == pytest.approx(0)


def test_a_moment_of_work_is_no_pressure(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    sensor = machine.sensor()
    machine.spend(12, 100, avg60=20)
    assert sensor.read() == pytest.approx(10)


def test_the_first_reading_is_the_pressure_of_the_last_minute(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.spend(60, 100, avg60=64)
    assert machine.sensor().read() == pytest.approx(64)


@pytest.mark.parametrize(("load", "percent"), [(0.2, 0), (1.0, 0), (1.6, 60), (2.0, 100), (9.0, 100)])
def test_without_a_pressure_file_each_process_per_core_beyond_the_first_is_pressure(
    tmp_path: Path, load: float, percent: float
) -> None:
    machine = Machine(tmp_path, has_pressure=False)
    sensor = machine.sensor()
    assert sensor.read() == 0
    machine.load = load
    for _ in range(4):
        machine.at += 30
        sensor.read()
    assert sensor.read() == pytest.approx(percent)


@pytest.mark.parametrize("text", ["", "\n", "some\n", "some avg60=much total=0\n"])
def test_a_pressure_file_without_figures_counts_as_missing(tmp_path: Path, text: str) -> None:
    machine = Machine(tmp_path, has_pressure=False)
    machine.file.write_text(text)
    machine.load = 1.5
    assert machine.sensor().read() == pytest.approx(50)
