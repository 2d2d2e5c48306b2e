// Package systemd contains the units of this folder, for the program that installs them.
package systemd

import "embed"

// Units are the units of pullgated, with /usr/local/bin as the folder of its program.
//
//go:embed pullgated.service pullgated.socket
var Units embed.FS

// Programs is the folder of programs in the units.
const Programs = "/usr/local/bin/"
