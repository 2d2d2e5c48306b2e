package nodeinstall

// OnChange returns an installer that calls a function before every change of the node; its error is that of the change.
func (i Installer) OnChange(f func(what string) error) Installer {
	i.before = f
	return i
}
