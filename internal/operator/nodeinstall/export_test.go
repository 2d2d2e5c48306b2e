package nodeinstall

// OnChange calls a function before every change of the node; its error is that of the change.
func (i *Installer) OnChange(f func(what string) error) { i.before = f }
