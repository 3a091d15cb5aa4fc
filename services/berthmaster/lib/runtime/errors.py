"""Faults that prevent a start or end a service, divided by the operator's next step.

::

    ServiceFault
    ├── SettingsError     a flag or variable is wrong: correct it          exit code 2
    └── CannotStart       this machine lacks something: install or free it exit code 3

Both are messages for operators and are shown as plain lines, never as a traceback. Any other
exception that leaves a service is a bug: the traceback is logged and the exit code is 1.
"""

EXIT_OK = 0
EXIT_DIED = 1
EXIT_SETTINGS = 2
EXIT_CANNOT_START = 3
EXIT_LATE = 4  # stopped, but did not drain within its limit


class ServiceFault(Exception):
    """The service cannot continue. The text gives the reason to readers who do not know the
    code.
    """

    exit_code = EXIT_DIED


class SettingsError(ServiceFault):
    """Settings that contradict each other or the service's environment."""

    exit_code = EXIT_SETTINGS


class CannotStart(ServiceFault):
    """Something outside the settings is missing, such as a driver or a free port."""

    exit_code = EXIT_CANNOT_START
