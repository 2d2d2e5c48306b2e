// Package cli runs the commands of pullgatectl: what they read and print, how they end, and how they reach the daemon. The
// commands themselves are in cmd/pullgatectl.
//
// Stdout gets answers alone. A command that fails ends with an exit code that scripts can rely on, and with what failed, why and
// what to do, each on one line of stderr. Nothing is changed before it was shown and agreed to. A daemon that is not reached is
// told from one that refuses, and no question waits longer than the caller wanted.
//
// Lists are read page by page. What is returned is whole, or cut where the caller wanted it, or an error. The beginning of an ID
// stands for one ID or for none.
package cli
