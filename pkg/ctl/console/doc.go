// Package console is where the commands of pullgatectl are run: what they read and print, how they end, and how they
// reach the daemon. The commands themselves are in cmd/pullgatectl.
//
// It promises that stdout gets answers alone; that whatever fails ends with an exit code that scripts can rely on, and
// with what failed, why, and what to do, each on one line of stderr; and that nothing is changed before it was shown
// and agreed to.
package console
