"""The control of a run: the same run, except that every client aggregates with itself alone."""

from dataclasses import fields, replace

from factorized_fl.config import Config
from factorized_fl.methods import find_method

BASELINE = "stand-alone"  # the method that trains without any aggregation, so it is its own control


def control_of(config: Config) -> Config:
    """Return the configuration of a run's control; that of a control, or of Stand-Alone, is the run's own.

    Methods that differ only in what they aggregate have one control: the method that their card names, with those of
    their options that it has.
    """
    if config.control:
        return config
    method = find_method(config.method).card.control or config.method
    names = {field.name for field in fields(find_method(method))}
    options = {name: value for name, value in config.options.items() if name in names}
    return replace(config, method=method, options=options, control=method != BASELINE)
