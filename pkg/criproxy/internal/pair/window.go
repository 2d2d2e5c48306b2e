package pair

// Flow control is between the client and the runtime: DATA and WINDOW_UPDATE pass, and each side limits the other. For frames that this
// process sends or keeps, it corrects the windows that the two sides count.
//
//	request of a forwarded call    client ── DATA ─────────────────────▶ runtime
//	                               client ◀────────────── WINDOW_UPDATE ─ runtime
//	request of a local call        client ── DATA ──▶ pair               the pair gives the window back itself
//	answer of a forwarded call     client ◀───────────────────── DATA ─── runtime
//	answer of a local call         client ◀─ DATA ─── pair               a debt of the pair, see below
//
// The rules:
//
//   - The client's window of the connection, conn, is what the client takes at this moment. Every DATA to the client takes
//     from it, and is sent only if it suffices.
//   - The runtime does not know of DATA of this process. So the sum of such DATA is a debt: the next WINDOW_UPDATEs of the
//     client for the connection are kept from the runtime, up to the debt. After that both agree again.
//   - While there is a debt the runtime may send more than the client takes. Then responses wait until the client
//     gives window. Nothing passes them: a pair keeps no frames.
//   - DATA of the runtime that are kept from the client (ahead.go) lower the debt, also below 0.
//   - Streams of local calls have a window of their own, in local. Those of forwarded calls are not counted here.
//   - The runtime's window of the connection, runtime, is counted in case the runtime is lost: the pair then gives back to the client the
//     part that the runtime had not given back, so that the client can go on to send.

// windows are those of a pair. They are guarded by pair.mu.
type windows struct {
	conn    int64 // what the client takes
	debt    int64 // how much of it this process used that the runtime does not know of
	initial int64 // what the client takes on a new stream
	runtime int64 // what the runtime takes on the connection
	closed  bool  // the pair is closed, nothing waits
}

func newWindows() windows {
	return windows{conn: defaultWindow, initial: defaultWindow, runtime: defaultWindow}
}

// grow adds a WINDOW_UPDATE of the client for the connection, and returns how much of it passes to the runtime.
func (w *windows) grow(increment int64) (pass int64, err error) {
	if increment == 0 {
		return 0, connError{codeProtocol, "WINDOW_UPDATE of 0"}
	}
	if w.conn+increment > maxWindow {
		return 0, connError{codeFlowControl, "window of the connection too large"}
	}
	w.conn += increment
	paid := min(w.debt, increment)
	w.debt -= paid
	return increment - paid, nil
}

// growLocal adds a WINDOW_UPDATE of the client for the stream of a local call.
func (p *pair) growLocalLocked(l *local, increment int64) error {
	if increment == 0 {
		return streamError{codeProtocol}
	}
	if l.window+increment > maxWindow {
		return streamError{codeFlowControl}
	}
	l.window += increment
	p.room.Broadcast()
	return nil
}

// setInitial changes the window of all streams, as a SETTINGS of the client says.
func (p *pair) setInitial(value int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	change := value - p.window.initial
	p.window.initial = value
	for _, st := range p.streams {
		if st.local == nil {
			continue
		}
		if st.local.window += change; st.local.window > maxWindow {
			return connError{codeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE too large for a stream"}
		}
	}
	p.room.Broadcast()
	return nil
}

// takeLocked uses the client's window for DATA of the runtime, and waits until it suffices. Before it waits it calls flush without the
// lock. It reports whether the pair is still open.
func (p *pair) takeLocked(size int64, flush func() error) bool {
	if p.window.conn < size {
		p.server.waits.Add(1)
		p.mu.Unlock()
		err := flush()
		p.mu.Lock()
		if err != nil {
			return false
		}
	}
	for p.window.conn < size {
		if p.window.closed {
			return false
		}
		p.room.Wait()
	}
	p.window.conn -= size
	return true
}

// reserve takes up to want bytes of the client's windows for DATA of a local call, and waits for the first. Before it waits it
// calls flush. It returns 0 if the stream has ended.
func (p *pair) reserve(id uint32, st *stream, want int, flush func() error) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for flushed := false; ; {
		if p.window.closed || p.streams[id] != st {
			return 0
		}
		if n := min(int64(want), maxFrame, p.window.conn, st.local.window); n > 0 {
			p.window.conn -= n
			st.local.window -= n
			if !p.lost {
				p.window.debt += n
			}
			return int(n)
		}
		if flushed {
			p.room.Wait()
			continue
		}
		flushed = true
		p.mu.Unlock()
		err := flush()
		p.mu.Lock()
		if err != nil {
			return 0
		}
	}
}
