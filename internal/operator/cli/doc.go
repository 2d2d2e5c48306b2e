// Package cli implements what the commands of pullgatectl have in common: input and output, exit codes, and the
// connection to the daemon. The commands themselves are in cmd/pullgatectl.
//
// Stdout gets only answers. A command that fails ends with an exit code that scripts can rely on, and prints what
// failed, why and what to do, each on one line of stderr. A command changes something only after it has shown the
// change and the user has agreed. A daemon that is not reached and a daemon that refuses have different exit codes, and
// no call waits longer than the caller's limit.
package cli
