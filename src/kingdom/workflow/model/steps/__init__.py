"""Every change of a run. Each step writes facts into the record, then sends what comes next."""
