// Package program implements what the daemons of the project have in common as programs: exit codes, errors of the
// command line, and logging.
package program
