// Package systemctl implements reading the properties of units from systemd.
package systemctl
