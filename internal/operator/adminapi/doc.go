// Package adminapi implements the admin API, with which an operator of a node reads and corrects the pull records
// (proto/pullgate/admin/v1 describes each call).
//
// The API answers only root and the user of the process, and no answer contains a credential, only IDs. A call writes
// its changes to disk, then to memory, and then answers; a call that fails before the answer has opened nothing. No
// call of the CRI waits for the admin API.
package adminapi
