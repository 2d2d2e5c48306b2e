// Package offline implements reading, checking and compacting the file of a store that no daemon has open.
//
// No call changes a byte of a store: it is not created, upgraded, repaired or set aside. [Compact] writes a new file and renames
// it over the store when it is complete, on disk and verified to hold the same values; after any failure the store is as it
// was.
//
// Each call holds the file's lock, and waits for it as long as a daemon would. While a daemon runs, which has the lock, the
// error is ErrInUse.
//
// # Lines of a dump
//
// Dump writes JSON, a line for each value in the order of bucket and key:
//
//	{"v":1,"bucket":"records","key":"<image ID> <repository>","value":{…}}        who proved access: a records.Record
//	{"v":1,"bucket":"marks","key":"<image ID> <repository>","value":{…}}          a preloaded mark: a records.Mark
//	{"v":1,"bucket":"intents","key":"<repository> <number>","value":{…}}          a pull: a records.Intent
//	{"v":1,"bucket":"meta","key":"<name>","value":…}                              of the store itself: format, distrust, …
//	{"v":1,"bucket":"records","key":"…","unreadable":"<why>"}                     a value that cannot be read
//	{"v":1,"damage":"<what>"}                                                     a part of the file that cannot be walked
//
// Fields may be added; none is removed or changes its meaning within a version. Every line is ASCII. Credentials are
// not in a store, only their IDs.
package offline
