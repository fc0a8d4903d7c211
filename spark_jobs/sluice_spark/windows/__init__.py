"""Windows of event time: what becomes of the transform's rows, as pure functions of frames."""
