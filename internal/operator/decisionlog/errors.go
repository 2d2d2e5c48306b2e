package decisionlog

import "errors"

// ErrNotALog means that a file cannot be a log of decisions; the log does not write to it.
var ErrNotALog = errors.New("decisions: not a log of decisions")

// errEnded is the error of Reopen after Run.
var errEnded = errors.New("decisions: log has ended")

// PathHint says what to do about a path that cannot be used.
const PathHint = `set decisionLog.path to a file of its own in a directory that exists and that pullgated may write, or to "" for none`
