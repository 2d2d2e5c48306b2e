package output

import (
	"fmt"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Status says how the daemon is, with what needs a human painted, and the configuration below.
func (v View) Status(p *Page, s *adminv1.GetStatusResponse) {
	line := func(c Colour, name, format string, args ...any) {
		p.Paint(c, "%-14s %s", name, fmt.Sprintf(format, args...))
	}
	line(Plain, "Version", "%s (commit %s)", s.GetVersion(), s.GetCommit())
	line(Plain, "Started", "%s", v.ago(s.GetStarted()))
	if s.GetEnforcing() {
		line(Good, "Enforcing", "yes")
	} else {
		line(Heed, "Enforcing", "no: everything is recorded and counted, nothing is denied")
	}
	store := s.GetStore()
	line(Plain, "Store", "%s, format %d, %s", store.GetPath(), store.GetFormat(), Size(store.GetBytes()))
	line(Plain, "", "%s, %s, %s", Count(store.GetRecords(), "record", "records"), Count(store.GetIntents(), "intent", "intents"),
		Count(store.GetMarks(), "preloaded mark", "preloaded marks"))
	if d := store.GetDistrust(); d != nil {
		line(Bad, "", "in distrust since %s: %s", v.date(d.GetSince()), d.GetReason())
		line(Bad, "", "pullgatectl distrust end --dry-run shows which images ending it opens")
	}
	line(Plain, "Grants", "%d", s.GetGrants())
	runtime := s.GetRuntime()
	if runtime.GetUp() {
		line(Good, "Runtime", "%s, up%s", runtime.GetEndpoint(), also(runtime.GetName(), runtime.GetVersion()))
	} else {
		line(Bad, "Runtime", "%s, NOT reached%s", runtime.GetEndpoint(), also(runtime.GetName(), runtime.GetVersion()))
	}
	switch source := s.GetPodSource(); {
	case source == nil:
		line(Plain, "Pod source", "none")
	case source.GetSynced():
		line(Good, "Pod source", "node %s, synced, %s", source.GetNode(), Count(source.GetPods(), "pod", "pods"))
	default:
		line(Heed, "Pod source", "node %s, NOT synced with the API server, %s known", source.GetNode(), Count(source.GetPods(), "pod", "pods"))
	}
	switch log := s.GetDecisionLog(); {
	case log == nil:
		line(Plain, "Decision log", "none")
	case log.GetDropped() == 0:
		line(Plain, "Decision log", "%s", log.GetPath())
	default:
		line(Heed, "Decision log", "%s, %s dropped", log.GetPath(), Count(log.GetDropped(), "decision", "decisions"))
	}
	for _, l := range s.GetNotListening() {
		line(Bad, "Listener", "%s is not bound, trying again: %s", l.GetField(), l.GetError())
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
		line(Plain, "Configuration", "%sread %s", file, v.ago(r.GetAt()))
	default:
		line(Bad, "Configuration", "%sread %s and invalid, the previous one is in force: %s", file, v.ago(r.GetAt()), r.GetError())
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
