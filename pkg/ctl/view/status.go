package view

import (
	"fmt"

	"github.com/pullgate/pullgate/pkg/ctl/text"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Status says how the daemon is, with what needs a human painted, and the configuration below.
func (v View) Status(p *text.Page, s *adminv1.GetStatusResponse) {
	line := func(c text.Colour, name, format string, args ...any) {
		p.Paint(c, "%-14s %s", name, fmt.Sprintf(format, args...))
	}
	line(text.Plain, "Version", "%s (commit %s)", s.GetVersion(), s.GetCommit())
	line(text.Plain, "Started", "%s", v.ago(s.GetStarted()))
	if s.GetEnforcing() {
		line(text.Good, "Enforcing", "yes")
	} else {
		line(text.Heed, "Enforcing", "no: everything is recorded and counted, nobody is kept from an image")
	}
	store := s.GetStore()
	line(text.Plain, "Store", "%s, format %d, %s", store.GetPath(), store.GetFormat(), text.Size(store.GetBytes()))
	line(text.Plain, "", "%s, %s, %s", count(store.GetRecords(), "record", "records"), count(store.GetIntents(), "intent", "intents"),
		count(store.GetMarks(), "preloaded mark", "preloaded marks"))
	if d := store.GetDistrust(); d != nil {
		line(text.Bad, "", "distrusted since %s: %s", v.date(d.GetSince()), d.GetReason())
		line(text.Bad, "", "pullgatectl distrust end --dry-run shows what ending that opens")
	}
	line(text.Plain, "Grants", "%d", s.GetGrants())
	runtime := s.GetRuntime()
	if runtime.GetUp() {
		line(text.Good, "Runtime", "%s, up%s", runtime.GetEndpoint(), also(runtime.GetName(), runtime.GetVersion()))
	} else {
		line(text.Bad, "Runtime", "%s, NOT reached%s", runtime.GetEndpoint(), also(runtime.GetName(), runtime.GetVersion()))
	}
	switch source := s.GetPodSource(); {
	case source == nil:
		line(text.Plain, "Pod source", "none")
	case source.GetSynced():
		line(text.Good, "Pod source", "node %s, in step, %s", source.GetNode(), count(source.GetPods(), "pod", "pods"))
	default:
		line(text.Heed, "Pod source", "node %s, NOT in step with the API server, %s known", source.GetNode(), count(source.GetPods(), "pod", "pods"))
	}
	switch log := s.GetDecisionLog(); {
	case log == nil:
		line(text.Plain, "Decision log", "none")
	case log.GetDropped() == 0:
		line(text.Plain, "Decision log", "%s", log.GetPath())
	default:
		line(text.Heed, "Decision log", "%s, %s missing in it", log.GetPath(), count(log.GetDropped(), "decision", "decisions"))
	}
	for _, l := range s.GetNotListening() {
		line(text.Bad, "Listener", "%s is not bound, trying again: %s", l.GetField(), l.GetError())
	}
	file := s.GetConfigurationPath()
	switch {
	case file == "": // a pullgated that does not say it
	case s.GetConfigurationFound():
		file += ", "
	default:
		file += " not found: using defaults, "
	}
	switch r := s.GetReload(); {
	case r == nil:
	case r.GetError() == "":
		line(text.Plain, "Configuration", "%sread %s", file, v.ago(r.GetAt()))
	default:
		line(text.Bad, "Configuration", "%sread %s and refused, the one before is in force: %s", file, v.ago(r.GetAt()), r.GetError())
	}
	if s.GetConfiguration() != "" {
		p.Gap()
		p.Text("  ", s.GetConfiguration())
	}
}

// also is what is known of a runtime beside its endpoint.
func also(name, version string) string {
	if name == "" {
		return ""
	}
	if version == "" {
		return ", " + name
	}
	return ", " + name + " " + version
}
