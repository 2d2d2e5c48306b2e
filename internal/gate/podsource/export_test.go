package podsource

// Dial makes the source of these options use another network.
func (o *Options) Dial(dial dialFunc) { o.dial = dial }

// Size returns the size of the pull secrets in bytes, and the number of Secrets that the source keeps in any way.
func (s *Source) Size() (bytes, secrets int) {
	s.secrets.mu.Lock()
	defer s.secrets.mu.Unlock()
	return s.secrets.size, len(s.secrets.byKey)
}

const MaxHeld = maxSize

// HoldAtMost makes the source keep fewer bytes than MaxHeld. It is called before Run.
func (s *Source) HoldAtMost(bytes int) { s.secrets.most = bytes }

// Idle reports whether no Secret has to be read.
func (s *Source) Idle() bool {
	s.secrets.mu.Lock()
	defer s.secrets.mu.Unlock()
	for _, e := range s.secrets.byKey {
		if e.queued != nil || e.running {
			return false
		}
	}
	return true
}
