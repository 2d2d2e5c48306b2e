package nodeenable

import (
	"context"
	"fmt"

	"github.com/pullgate/pullgate/internal/kubeletconf"
)

// A look is what is found on a node before anything is planned.
type look struct {
	node kubeletconf.Node // as it is
	// base is the node as it would be without what this package wrote.
	base    kubeletconf.Node
	host    kubeletconf.Host // reads base
	journal *journal         // nil if there is none
	// files are what this package wrote and is still there, stuck those of them that somebody else changed.
	files []kept
	stuck []string
	// blind is why node and base are not known, but for the name of the unit, which the journal has. Without a
	// journal it is an error.
	blind error
}

// kept is a file that this package wrote or changed.
type kept struct {
	path   string
	before []byte // nil: it was not there
}

// look finds out how the node is.
func (s Switch) look(ctx context.Context) (look, error) {
	j, err := readJournal(s.Host)
	if err != nil {
		return look{}, err
	}
	unit := s.Unit
	if unit == "" && j != nil {
		unit = j.Unit
	}
	l := look{journal: j}
	if l.node, l.blind = s.Host.Discover(ctx, unit); l.blind != nil {
		if j == nil {
			return look{}, l.blind
		}
		l.node = kubeletconf.Node{Unit: kubeletconf.Unit{Name: unit}}
	}
	if err := l.own(s.Host); err != nil {
		return look{}, err
	}
	without := map[string][]byte{}
	for _, f := range l.files {
		without[f.path] = f.before
	}
	l.host = s.Host.With(without)
	if l.blind == nil {
		l.base, err = l.host.Discover(ctx, unit)
	}
	return l, err
}

// own finds the files that this package wrote, by the journal and, without it, by their names and first lines.
func (l *look) own(h kubeletconf.Host) error {
	candidates := ownFiles(l.node)
	if l.journal != nil && len(l.journal.File.Lines) > 0 {
		if err := l.ownLines(h, l.journal.File); err != nil {
			return err
		}
	} else if l.journal != nil {
		candidates = append(candidates, l.journal.File.Path)
	}
	seen := map[string]bool{}
	for _, file := range candidates {
		if seen[file] {
			continue
		}
		seen[file] = true
		whose, err := whose(h, file)
		if err != nil {
			return fmt.Errorf("look whose %s is: %w", file, err)
		}
		switch whose {
		case absent, foreign:
		case oursChanged:
			l.stuck = append(l.stuck, file)
		case ours:
			l.files = append(l.files, kept{path: file})
		}
	}
	return nil
}

// ownLines finds the lines that this package put into a file of somebody else's.
func (l *look) ownLines(h kubeletconf.Host, f noted) error {
	content, err := h.ReadFile(f.Path)
	if err != nil {
		return fmt.Errorf("read what the journal names: %w", err)
	}
	before, ok := undo(content, f.Lines)
	switch {
	case !ok:
		l.stuck = append(l.stuck, f.Path)
	case string(before) != string(content):
		l.files = append(l.files, kept{path: f.Path, before: before})
	}
	return nil
}

// listen is the endpoint that the kubelet is, or was, pointed at.
func (s Switch) listen(l look) string {
	if l.journal != nil {
		return l.journal.Endpoint
	}
	return s.Daemon.Listen
}

// byHand tells how to do by hand what this package does not do: files of somebody else's have the last word.
func byHand(l look) string {
	restart := "systemctl restart " + l.node.Unit.Name
	if len(l.stuck) > 0 {
		was := ""
		if l.journal != nil && l.journal.Runtime != "" {
			was = "; the kubelet dialled " + l.journal.Runtime + " before"
		}
		return fmt.Sprintf("take pullgated's endpoint out of %s by hand, or remove the file if that is all it says, then systemctl daemon-reload and %s%s", l.stuck[0], restart, was)
	}
	return fmt.Sprintf("take pullgated's endpoint out of %s by hand, then systemctl daemon-reload and %s", l.node.Dials().Runtime.From, restart)
}
