package decisionlog

import "errors"

// ErrNotALog is returned for a file that cannot be a log of decisions and is not to be written to.
var ErrNotALog = errors.New("decisions: not a log of decisions")

// errEnded is returned by Reopen after Run.
var errEnded = errors.New("decisions: log has ended")
