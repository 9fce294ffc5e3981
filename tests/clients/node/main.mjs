// Runs one of npm's Kafka clients as a job says, and prints what happened as one line of JSON. The job is as main.go's.
import { setTimeout as sleep } from 'node:timers/promises'

const job = JSON.parse(process.argv[2])
const begin = Date.now()
const outcome = { records: 0, distinct: 0, arrivals: {}, errors: [] }
const seen = new Set()
const left = () => Math.max(0, job.seconds * 1000 - (Date.now() - begin))

function add (value) {
  outcome.records++
  seen.add(String(value).slice(0, 8))
  outcome.distinct = seen.size
  const at = Math.floor((Date.now() - begin) / 10)
  outcome.arrivals[at] = (outcome.arrivals[at] ?? 0) + 1
}

const fail = (error) => outcome.errors.push(String(error?.message ?? error))

/** What one of the job's producers writes. */
function batches (first) {
  const values = Array.from({ length: Math.ceil((job.count - first) / job.producers) }, (_, at) =>
    String(first + at * job.producers).padStart(8, '0').padEnd(job.size, 'x'))
  return Array.from({ length: Math.ceil(values.length / job.batch) }, (_, at) =>
    values.slice(at * job.batch, (at + 1) * job.batch))
}

async function untilDone () {
  while (outcome.distinct < job.count && left()) await sleep(20)
}

/** Send all batches at once, each in a request of its own. */
async function sendAll (first, send) {
  const sent = batches(first).map((values) => send(values).then(() => values.forEach(add), fail))
  await Promise.race([Promise.all(sent), sleep(left())])
}

async function kafkajs (first) {
  const { Kafka, logLevel } = (await import('kafkajs')).default
  const kafka = new Kafka({
    clientId: job.client_id,
    brokers: [job.bootstrap],
    logLevel: logLevel.WARN,
    logCreator: () => ({ log }) => fail(`${log.message} ${log.error ?? ''}`)
  })
  if (job.role === 'produce') {
    const { Partitioners } = (await import('kafkajs')).default
    const producer = kafka.producer({
      createPartitioner: Partitioners.DefaultPartitioner,
      ...(job.in_flight ? { maxInFlightRequests: job.in_flight } : {})
    })
    await producer.connect()
    await sendAll(first, (values) =>
      producer.send({ topic: job.topic, acks: job.acks, messages: values.map((value) => ({ value })) }))
    await producer.disconnect()
    return
  }
  const consumer = kafka.consumer({ groupId: job.client_id, maxBytesPerPartition: job.fetch_bytes })
  await consumer.connect()
  await consumer.subscribe({ topic: job.topic, fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => add(message.value) })
  await untilDone()
  await consumer.disconnect()
}

async function platformatic (first) {
  const { Consumer, Producer, stringDeserializers, stringSerializers } = await import('@platformatic/kafka')
  const options = { clientId: job.client_id, bootstrapBrokers: [job.bootstrap] }
  if (job.role === 'produce') {
    const producer = new Producer({ ...options, serializers: stringSerializers, timeout: 20_000 })
    await sendAll(first, (values) => producer.send({
      acks: job.acks,
      messages: values.map((value) => ({ topic: job.topic, value }))
    }))
    await producer.close()
    return
  }
  const consumer = new Consumer({
    ...options,
    groupId: job.client_id,
    deserializers: stringDeserializers,
    maxBytes: job.fetch_bytes
  })
  consumer.on('error', fail)
  const stream = await consumer.consume({ topics: [job.topic], mode: 'earliest' })
  stream.on('error', fail)
  stream.on('data', (message) => add(message.value))
  await untilDone()
  await consumer.close(true)
}

try {
  const run = { kafkajs, '@platformatic/kafka': platformatic }[job.client]
  await Promise.all(Array.from({ length: job.producers }, (_, first) => run(first)))
} catch (error) {
  fail(error)
}
process.stdout.write(JSON.stringify(outcome) + '\n', () => process.exit(0))
