// Package adminapi is the admin API: what an operator of a node sees of the pull records, and what can be corrected
// (proto/pullgate/admin/v1 says what each call does).
//
// Only root and the user of the process are answered, and no answer holds a credential, only IDs. What a
// call changes is on disk, then in memory, then answered; a call that fails on the way has opened nothing.
// Whatever becomes of the admin API, no call of the CRI waits for it.
//
// # Locks
//
// Those of the feed of decisions and of the count of connections are leaves: nothing is called under them.
package adminapi
