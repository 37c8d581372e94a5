"""A GPU's SM clock and power by NVML, without nvidia-smi's start-up time. Reads only."""

import ctypes


class GpuState:
    CLOCK_SM = 1

    def __init__(self, uuid):
        """`uuid` as "GPU-…". Without NVML all readings are None."""
        self.library, self.handle = None, ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if (
                library.nvmlInit_v2() == 0
                and library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self.handle)) == 0
            ):
                self.library = library
        except OSError:
            pass

    def sm_clock_mhz(self):
        value = ctypes.c_uint()
        if self.library is None or self.library.nvmlDeviceGetClockInfo(self.handle, self.CLOCK_SM, ctypes.byref(value)):
            return None
        return value.value

    def power_watts(self):
        value = ctypes.c_uint()
        if self.library is None or self.library.nvmlDeviceGetPowerUsage(self.handle, ctypes.byref(value)):
            return None
        return round(value.value / 1000, 1)
