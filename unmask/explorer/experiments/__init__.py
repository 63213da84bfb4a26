"""The tour's experiments: functions of an encoder and a text that return measured numbers."""
