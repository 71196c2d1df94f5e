# SPDX-License-Identifier: Apache-2.0
"""SIMULATED sensors of a board: as hwmon (L4T R34 and newer), as IIO (R32), and Thor's INA238.

Rails and places are those of NVIDIA's device trees. The values are made up.
"""

from collections.abc import Mapping
from pathlib import Path

HWMON = "sys/class/hwmon"
# By kind of board, files below its root.
ORIN = {
    f"{HWMON}/hwmon1/name": "ina3221",
    f"{HWMON}/hwmon1/in1_label": "VDD_IN",
    f"{HWMON}/hwmon1/in1_input": "5000",
    f"{HWMON}/hwmon1/curr1_input": "1200",
    f"{HWMON}/hwmon1/in2_label": "VDD_CPU_GPU_CV",
    f"{HWMON}/hwmon1/in2_input": "5000",
    f"{HWMON}/hwmon1/curr2_input": "400",
    f"{HWMON}/hwmon1/in3_label": "NC",
    f"{HWMON}/hwmon1/in3_input": "0",
    f"{HWMON}/hwmon1/curr3_input": "0",
    # The sum of shunt voltages: a channel without a current.
    f"{HWMON}/hwmon1/in7_label": "sum of shunt voltages",
    f"{HWMON}/hwmon1/in7_input": "9",
    f"{HWMON}/hwmon2/name": "soctherm_oc",
    f"{HWMON}/hwmon2/oc1_event_cnt": "0",
    f"{HWMON}/hwmon2/oc3_event_cnt": "7",
    # Another chip: no power of the board.
    f"{HWMON}/hwmon3/name": "pwmfan",
    f"{HWMON}/hwmon3/in1_label": "VDD_FAN",
    f"{HWMON}/hwmon3/in1_input": "5000",
    f"{HWMON}/hwmon3/curr1_input": "90",
}
NANO = {
    "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/rail_name_0": "POM_5V_IN",
    "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/in_power0_input": "2500",
    "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/rail_name_1": "POM_5V_GPU",
    "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/in_power1_input": "40",
}
THOR = {
    f"{HWMON}/hwmon0/name": "ina238",
    f"{HWMON}/hwmon0/in1_label": "VIN",
    f"{HWMON}/hwmon0/in1_input": "19000",
    f"{HWMON}/hwmon0/curr1_input": "1000",
    f"{HWMON}/hwmon0/power1_input": "18500000",
}
POWER_MODE = {"var/lib/nvpmodel/status": "pmode:0002"}
COOLING = {"cpufreq-cpu0": "0", "thermal-devfreq-0": "2", "pwm-fan": "3", "cpu-throttle-alert": "1"}


def add(root: Path, files: Mapping[str, str] = ORIN) -> None:
    """Add the sensors to a board, and cooling devices of which one is a fan."""
    cooling = {
        f"sys/class/thermal/cooling_device{number}/{name}": value
        for number, (kind, state) in enumerate(COOLING.items())
        for name, value in (("type", kind), ("cur_state", state))
    }
    for name, value in {**files, **cooling, **POWER_MODE}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
