// Package offline implements reading, checking and compacting the file of a store that no daemon has open.
//
// No call changes a store. [Compact] writes a new file, and renames it over the store when it is complete, on disk and
// verified to have the same values. Each call holds the file's lock; with a running daemon, the error is
// records.ErrInUse.
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
// Within a version, fields may be added, but are not removed and do not change their meaning. Every line is ASCII.
package offline
