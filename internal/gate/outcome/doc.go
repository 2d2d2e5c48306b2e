// Package outcome tells from a runtime's answer what came of a pull.
//
// Runtimes report nearly every failure of a pull with the same code, so the text has to tell a registry that
// refused from one that could not be asked, and both from a pull that may still bring the image. Whatever is not
// known for certain is an [Error], which is the safe side.
package outcome
