// Package outcome implements the classification of a runtime's answer to a pull.
//
// Runtimes report nearly every failure of a pull with the same code, so the text has to distinguish a registry that
// denied the pull from one that could not be asked, and both from a pull that may still bring the image. If this is not
// certain, the outcome is [Error], which is safe.
package outcome
