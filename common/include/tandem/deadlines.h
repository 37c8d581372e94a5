/* File: deadlines.h
 *
 * The default deadlines of the client library, in milliseconds: one definition for tandem/client.h and
 * tandem/tandem.h.
 */
#ifndef TANDEM_DEADLINES_H_
#define TANDEM_DEADLINES_H_

/* For the daemon to answer a connection. */
#define TANDEM_DEFAULT_CONNECT_DEADLINE_MS 5000
/* For the other ranks of a group: joining, preparing, rendezvous, allocating, signals, leaving. */
#define TANDEM_DEFAULT_DEADLINE_MS 30000
/* For launches and streams to end. */
#define TANDEM_DEFAULT_WAIT_DEADLINE_MS 600000

#endif /* TANDEM_DEADLINES_H_ */
