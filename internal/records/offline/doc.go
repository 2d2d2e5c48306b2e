// Package offline implements reading, checking and compacting the file of a store that no daemon has open.
//
// No call changes a byte of a store, or creates, upgrades, repairs or sets aside a store. [Compact] writes a new file.
// When the file is complete, on disk and verified to have the same values, Compact renames it over the store; after any
// failure the store is unchanged.
//
// Each call holds the file's lock, and waits for it as long as a daemon would. A running daemon holds the lock; the
// error is then ErrInUse.
//
// # Lines of a dump
//
// Dump writes JSON, a line for each value in the order of bucket and key:
//
//	{"v":1,"bucket":"records","key":"<image ID> <repository>","value":{…}}        who proved access: a records.Record
//	{"v":1,"bucket":"marks","key":"<image ID> <repository>","value":{…}}          a preloaded mark: a records.Mark
//	{"v":1,"bucket":"intents","key":"<repository> <number>","value":{…}}          a pull: a records.Intent
//	{"v":1,"bucket":"endorsements","key":"<image ID> <repository> <requirement>",…}   a records.Endorsement
//	{"v":1,"bucket":"meta","key":"<name>","value":…}                              format, distrust, …
//	{"v":1,"bucket":"records","key":"…","unreadable":"<why>"}                     a value that cannot be read
//	{"v":1,"damage":"<what>"}                                                     a part that cannot be walked
//
// Within a version, fields may be added, but are not removed and do not change their meaning. Every line is ASCII. A
// store contains no credentials, only their IDs.
package offline
