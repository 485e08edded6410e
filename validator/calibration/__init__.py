"""Calibration: measures honest work to set the limits of statistical checks per model, engine and type.

honest    files like those of honest nodes, of any engine, type and batch size
figures   measurements of a verifier on them
limits    from figures to the entries of a calibration
measuring all of it for one version
"""
